"""Speed benchmark: every method emits the replayed answers, and the figures are consistent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.accel import LanguageModel
from antiphon.accel.drafting.drafters import DRAFTERS, Blend
from antiphon.accel.generate import generate
from antiphon.accel.processor import processor_name
from antiphon.accel.testing.tiny import EOS, byte_tokenizer
from antiphon.pipelines.benchmark import chart as charts
from antiphon.pipelines.benchmark import speed as speed
from antiphon.pipelines.benchmark.facts import machine_facts
from antiphon.pipelines.benchmark.jobs import make_jobs
from antiphon.pipelines.benchmark.loading import random_model
from antiphon.pipelines.benchmark.methods import (
    GREEDY,
    NAMES,
    PROMPT_LOOKUP,
    AntiphonGenerate,
    lookahead_methods,
    methods_by_name,
    parse_num_draft_tokens,
)
from antiphon.pipelines.benchmark.run import Job, MethodRun
from antiphon.pipelines.benchmark.speed import measure_speed
from antiphon.pipelines.benchmark.teacher_forcing import TeacherForcing
from benchmarks.bandwidth_floor import cache_bytes, copy_rate, read_bytes, step_seconds
from benchmarks.bandwidth_floor import measure_floor as measure_floor
from tests.families.table import tiny_model
from tests.pipelines.recorded import HILL, SAMPLES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def follower_model() -> LanguageModel:
    """A separate model for this file, because the tests add and remove hooks."""
    return LanguageModel(tiny_model(max_position_embeddings=1024), byte_tokenizer(), name="tiny")


def replayed(language_model: LanguageModel, **how: Any) -> list[Job]:
    return make_jobs(language_model, SAMPLES, limit=60, replayed=True, **how)


@pytest.mark.parametrize(("family", "dtype"), [("llama", torch.float32), ("qwen3", torch.bfloat16)])
def test_every_method_replays_the_recorded_answers(family: str, dtype: torch.dtype) -> None:
    model: Any = tiny_model(family, max_position_embeddings=1024)
    model = model.to(dtype)
    language_model = LanguageModel(model, byte_tokenizer(), name=family)
    jobs = replayed(language_model)
    methods = methods_by_name([*NAMES, "blend:3"], 16)
    measured = measure_speed(language_model, jobs, methods, limit=60, rounds=1, warm_up=0)
    assert [figures.name for figures in measured.methods] == [*PROMPT_LOOKUP_FIRST, *DRAFTERS, "blend:3"]
    for figures in measured.methods:
        assert [run.tokens for run in figures.rounds[0]] == [job.answer for job in jobs], figures.name
    steps = {figures.name: figures.steps for figures in measured.methods}
    plain = sum(len(job.answer or ()) - 1 for job in jobs)
    assert steps[GREEDY] == steps["nothing"] == plain
    assert max(steps["hf-lookup"], steps["hf-lookup-n3"], steps["blend"], steps["trie"]) < plain
    assert steps["blend"] < steps["blend:3"]


PROMPT_LOOKUP_FIRST = (GREEDY, *PROMPT_LOOKUP)


def test_a_truncated_answer_is_replayed_to_its_end(follower_model: LanguageModel) -> None:
    jobs = make_jobs(follower_model, SAMPLES, limit=7, replayed=True)
    assert [len(job.answer or ()) for job in jobs] == [7, 7, 7]
    measured = measure_speed(follower_model, jobs, methods_by_name(NAMES, 8), limit=7, rounds=1, warm_up=0)
    assert {run.tokens for figures in measured.methods for run in figures.rounds[0]} == {job.answer for job in jobs}


def test_the_model_is_unchanged_after_a_replay(follower_model: LanguageModel) -> None:
    job = replace(replayed(follower_model)[0], answer=None)
    (before,) = (_plain(follower_model, job),)
    measure_speed(follower_model, replayed(follower_model), methods_by_name(["blend"], 8), limit=60, rounds=1)
    assert _plain(follower_model, job) == before


def _plain(language_model: LanguageModel, job: Job) -> list[int]:
    model: Any = language_model.model
    ids = torch.tensor([job.prompt])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    return list(map(int, output[0]))


def test_teacher_forcing_changes_only_the_recorded_logits(follower_model: LanguageModel) -> None:
    model: Any = follower_model.model
    ids = torch.tensor([[256, *b"It opens at nine."]])
    positions = torch.arange(ids.shape[1])[None]
    with torch.no_grad():
        plain = model(input_ids=ids, position_ids=positions).logits
        with TeacherForcing(model, end=EOS, longest=10) as follower:
            follower.follow(5, [70, 71, 72])
            led = model(input_ids=ids, position_ids=positions, logits_to_keep=16).logits
    assert led.argmax(-1)[0, 2:].tolist() == [70, 71, 72, *[EOS] * 11]
    changed = (led != plain[:, -16:]).sum(-1)
    assert changed.tolist() == [[1] * 16]


class Late(TeacherForcing):
    """Forces each row to emit the token after the recorded one."""

    def follow(self, start: int, answer: Any) -> None:
        super().follow(start - 1, answer)


class Silent(TeacherForcing):
    """Forces no token."""

    def _force(self, model: Any, args: Any, arguments: Any, output: Any) -> None:
        return None


@pytest.mark.parametrize("wrong", [Late, Silent])
def test_wrong_teacher_forcing_is_detected(
    wrong: type[TeacherForcing], follower_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "TeacherForcing", wrong)
    with pytest.raises(ValueError, match=r"hf-greedy emitted \d+ tokens that differ from the \d+ recorded ones at"):
        measure_speed(follower_model, replayed(follower_model), methods_by_name([], 8), limit=60, rounds=1, warm_up=0)
    assert not follower_model.model._forward_hooks, "the hook is gone all the same"


def test_a_method_that_ends_early_is_detected(follower_model: LanguageModel) -> None:
    class Hasty:
        name, is_baseline = GREEDY, True

        def __call__(self, language_model: LanguageModel, job: Job, limit: int) -> MethodRun:
            return MethodRun((job.answer or ())[:5], seconds=1, first_token_seconds=0, steps=4, drafted=0)

    with pytest.raises(ValueError, match="emitted 5 tokens that differ from the 54 recorded ones at token 5"):
        measure_speed(follower_model, replayed(follower_model), [Hasty()], limit=60, rounds=1, warm_up=0)


def test_a_model_without_position_ids_cannot_replay() -> None:
    language_model = LanguageModel(tiny_model("mamba2"), byte_tokenizer(), name="mamba2")
    with pytest.raises(ValueError, match="was not told the position of each token"):
        measure_speed(language_model, replayed(language_model), methods_by_name([], 8), limit=60, rounds=1, warm_up=0)


def test_all_methods_give_the_model_s_own_greedy_output(follower_model: LanguageModel) -> None:
    jobs = make_jobs(follower_model, SAMPLES[:2], limit=12)
    measured = measure_speed(follower_model, jobs, methods_by_name(NAMES, 8), limit=12, rounds=1)
    for figures in measured.as_dict():
        assert figures["identical"] == 1, figures["method"]
    plain = [_plain(follower_model, job)[len(job.prompt) :] for job in jobs]
    assert [list(run.tokens) for run in measured.methods[0].rounds[0]] == plain


def test_rows_and_forward_passes_of_transformers_are_counted(follower_model: LanguageModel) -> None:
    job = replayed(follower_model)[0]
    lengths: list[int] = []

    def count(model: Any, args: Any, arguments: Any, output: Any) -> None:
        lengths.append(arguments["input_ids"].shape[1])

    hook = follower_model.model.register_forward_hook(count, with_kwargs=True)
    try:
        measured = measure_speed(
            follower_model, [job], methods_by_name(["hf-lookup"], 8), limit=60, rounds=1, warm_up=0
        )
    finally:
        hook.remove()
    greedy, lookup = (figures.rounds[0][0] for figures in measured.methods)
    fed = lengths[-lookup.steps :]
    assert (greedy.steps, greedy.drafted) == (len(job.answer or ()) - 1, 0)
    assert lookup.drafted == sum(fed) - len(fed)


class Noting:
    """A method that computes nothing: notes each call in ``order``, and is interrupted at call number ``ends_at``."""

    is_baseline = False

    def __init__(self, name: str, order: list[tuple[str, int]], ends_at: int | None = None) -> None:
        self.name, self.order, self.ends_at = name, order, ends_at

    def __call__(self, language_model: LanguageModel, job: Job, limit: int) -> MethodRun:
        if len(self.order) == self.ends_at:
            raise KeyboardInterrupt
        self.order.append((self.name, len(job.prompt)))
        return MethodRun((0, 1, 2), seconds=2.0, first_token_seconds=1.0, steps=2, drafted=0)


TWO_JOBS = [Job((1,)), Job((1, 2))]


def test_methods_take_turns(follower_model: LanguageModel) -> None:
    order: list[tuple[str, int]] = []
    methods = [Noting(GREEDY, order), Noting("blend", order)]
    measure_speed(follower_model, TWO_JOBS, methods, limit=3, rounds=2, warm_up=1)
    one_round = [(GREEDY, 1), ("blend", 1), (GREEDY, 2), ("blend", 2)]
    assert order == [(GREEDY, 1), ("blend", 1), *one_round, *one_round]


@pytest.mark.parametrize(("calls", "rounds", "jobs"), [(2, 1, 1), (3, 1, 1), (4, 1, 2), (7, 1, 2), (9, 2, 2)])
def test_an_interruption_keeps_what_every_method_has_decoded(
    calls: int, rounds: int, jobs: int, follower_model: LanguageModel
) -> None:
    order: list[tuple[str, int]] = []
    methods = [Noting(GREEDY, order, calls), Noting("blend", order, calls)]
    measured = measure_speed(follower_model, TWO_JOBS, methods, limit=3, rounds=3, warm_up=0).methods
    assert [[len(each) for each in figures.rounds] for figures in measured] == [[jobs] * rounds] * 2


def test_an_interruption_before_the_first_figures_is_raised(follower_model: LanguageModel) -> None:
    order: list[tuple[str, int]] = []
    with pytest.raises(KeyboardInterrupt):
        measure_speed(follower_model, TWO_JOBS, [Noting(GREEDY, order, 0)], limit=3, rounds=1, warm_up=0)


def test_methods_are_distinct_with_greedy_decoding_first() -> None:
    methods: Any = methods_by_name(["blend:16", "hf-lookup", "blend", "blend:auto", "blend"], 8)
    assert [method.name for method in methods] == [GREEDY, "blend:16", "hf-lookup", "blend", "blend:auto"]
    assert [getattr(method, "num_draft_tokens", None) for method in methods] == [None, 16, None, 8, None]
    assert (parse_num_draft_tokens("auto"), parse_num_draft_tokens("12")) == (None, 12)


def test_lookahead_windows_are_in_the_name_and_get_all_their_rows() -> None:
    methods: Any = (
        *lookahead_methods(["7,5,7"]),
        *lookahead_methods(["15,5,3"], unread=True),
        *methods_by_name(["lookahead:9"], 8)[1:],
    )
    assert [method.num_draft_tokens for method in methods] == [55, 71, 71, 9]
    drafters = [method.drafter() for method in methods[:3]]
    settings = [(each.width, each.ngram, each.guesses, each.prompt_as_reference) for each in drafters]
    assert settings == [(7, 5, 7, True), (15, 5, 3, True), (15, 5, 3, False)]


def test_rows_reach_the_engine_as_they_are(follower_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    from antiphon.accel import generate as seam

    seen: list[Any] = []

    def spy(*given: Any, **options: Any) -> Any:
        seen.append(options["num_draft_tokens"])
        return generate(*given, **(options | {"num_draft_tokens": 4}))

    monkeypatch.setattr(seam, "generate", spy)
    job = replace(replayed(follower_model)[0], answer=None)
    for method in methods_by_name(["blend:5", "blend:auto"], 8)[1:]:
        method(follower_model, job, 4)
    assert seen == [5, None]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: methods_by_name(["bushel"], 8), "There is no method 'bushel'; choose from hf-greedy, hf-lookup"),
        (lambda: methods_by_name(["hf-lookup:8"], 8), "There is no method 'hf-lookup:8'"),
        (
            lambda: lookahead_methods(["7,5"]),
            "invalid window size '7,5'; give columns, n-gram and guesses",
        ),
        (lambda: methods_by_name(["blend:many"], 8), "num_draft_tokens is 'many'; give a number, or auto"),
        (lambda: parse_num_draft_tokens("-3"), "num_draft_tokens is '-3'"),
        (
            lambda: random_model("llama-9b", byte_tokenizer(), dtype=None, device=None),
            "no architecture 'llama-9b'; choose one of",
        ),
        (lambda: charts.check_chart(Path("chart.gif")), r"its name needs to end in \.png or \.svg"),
    ],
)
def test_invalid_methods_and_options_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"limit": 0}, "max_new_tokens is 0"),
        ({"passages": -1}, "passages is -1"),
        ({"limit": 1000}, r"exceed the context window of 'tiny' \(1024 tokens\)"),
    ],
)
def test_invalid_job_options_are_refused(how: dict[str, Any], message: str, follower_model: LanguageModel) -> None:
    with pytest.raises(ValueError, match=message):
        make_jobs(follower_model, SAMPLES, **{"limit": 10, **how})


def test_a_single_sample_cannot_be_shuffled(follower_model: LanguageModel) -> None:
    with pytest.raises(ValueError, match="There is only 1 sample"):
        make_jobs(follower_model, SAMPLES[:1], limit=4, shuffled=True)


def said(job: Job) -> str:
    return bytes(token for token in job.prompt if token < 256).decode()


def test_prompts_are_recorded_or_built_over_passages_or_without(follower_model: LanguageModel) -> None:
    recorded_, one, none = (make_jobs(follower_model, SAMPLES, limit=4, passages=count)[0] for count in (None, 1, 0))
    assert (said(recorded_), recorded_.references) == (f"{HILL} Where?", SAMPLES[0].references)
    assert HILL in said(one)
    assert "It opens at nine." not in said(one)
    assert said(one).count("Question: Where?") == 2
    assert one.references == (HILL,)
    assert (said(none), none.references) == ("user\nWhere?\nassistant\n", ())


def test_shuffled_samples_have_references_of_other_samples(follower_model: LanguageModel) -> None:
    first, second, third = make_jobs(follower_model, SAMPLES, limit=4, shuffled=True, replayed=True)
    assert first.references == SAMPLES[1].references
    assert "Bees dance." in said(first)
    assert HILL not in said(first)
    assert "Question: Where?" in said(first)
    assert bytes(first.answer or ()) == SAMPLES[0].response.encode()[:4]
    assert HILL in said(third)
    assert second.references == ()


def test_machine_facts_name_processor_threads_and_versions() -> None:
    facts = machine_facts(torch.device("cpu"))
    assert facts["processor"] == processor_name() != ""
    assert (facts["device"], facts["threads"], facts["torch"]) == ("cpu", torch.get_num_threads(), torch.__version__)


@pytest.mark.parametrize(
    ("name", "millions"), [("llama-15m", 15), ("llama-0.5b", 478), ("llama-2-7b", 6738), ("qwen2.5-0.5b", 494)]
)
def test_architectures_have_the_parameter_counts_of_their_names(name: str, millions: int) -> None:
    model = random_model(name, byte_tokenizer(), dtype=torch.bfloat16, device=torch.device("meta"))
    assert round(model.num_parameters() / 1e6) == millions
    assert (model.dtype, model.training) == (torch.bfloat16, False)


def test_the_bandwidth_floor_counts_the_bytes_that_a_step_reads() -> None:
    apart, tied = tiny_model(), tiny_model(tie_word_embeddings=True)
    table: Any = apart.get_input_embeddings().weight
    assert read_bytes(apart) == sum(each.nbytes for each in apart.parameters()) - table.nbytes
    assert read_bytes(tied) == sum(each.nbytes for each in tied.parameters())
    config = apart.config
    head = config.hidden_size // config.num_attention_heads
    assert cache_bytes(apart) == 2 * 4 * config.num_hidden_layers * config.num_key_value_heads * head
    floor = measure_floor(apart, rows=(4,), context=20, copied=2**20)
    assert floor.seconds == (read_bytes(apart) + 20 * cache_bytes(apart)) / floor.rate
    shown = floor.as_dict()
    assert (shown["rows"], shown["context"]) == ([1, 4], 20)
    assert shown["of_floor"][0] == pytest.approx(floor.steps[1] / floor.seconds, rel=0.01)
    with pytest.raises(ValueError, match="Steps after 500 tokens need 540 positions, and the model has 512"):
        measure_floor(apart, rows=(4, 12), context=500)


def test_steps_are_measured_with_the_requested_numbers_of_rows() -> None:
    model = tiny_model(max_position_embeddings=1024)
    forwards: list[int] = []

    def count(model: Any, args: Any, arguments: Any, output: Any) -> None:
        forwards.append(output.logits.shape[1])

    measure_floor(model, rows=(3,), context=9, copied=2**10)
    model.register_forward_hook(count, with_kwargs=True)
    assert list(step_seconds(model, (3, 8), 9)) == [1, 3, 8]
    assert forwards == [1, *[1, 3, 8] * 9]


def test_drafters_see_no_logits_under_teacher_forcing(follower_model: LanguageModel) -> None:
    shapes: set[Any] = set()

    class Curious(Blend):
        def observe(self, draft: Any, accepted: Any, logits: Any) -> None:
            shapes.add(logits and len(logits))

    (job,) = replayed(follower_model)[:1]
    with TeacherForcing(follower_model.model, end=EOS, longest=60) as follower:
        follower.follow(len(job.prompt), job.answer or ())
        AntiphonGenerate("blend", Curious, 8)(follower_model, job, 60)
    assert shapes == {None}
    AntiphonGenerate("blend", Curious, 8)(follower_model, replace(job, answer=None), 3)
    assert len(shapes) > 1


def test_the_copy_rate_is_plausible() -> None:
    assert 1e7 < copy_rate(torch.device("cpu"), 2**24, repeats=3) < 1e14
