"""The arithmetic of the benchmarks' figures, with numbers that can be computed by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log2
from typing import Any

import pytest

from antiphon.accel import LanguageModel
from antiphon.accel.drafting.drafters import DRAFTERS, Copying, Nothing
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.pipelines.benchmark.run import Job
from antiphon.pipelines.benchmark.samples import RecordedSample
from antiphon.pipelines.benchmark.speed import measure_speed
from antiphon.retrieval import HashEmbedder
from benchmarks import indexing, speed
from benchmarks.answer_selection import MAX_DECLINED, Outcome, choose_threshold, held_out_rows
from benchmarks.answers import AnswerTrace, SpanQuestion, answer_figures
from benchmarks.bandwidth_floor import cache_bytes, measure_floor, read_bytes
from benchmarks.batch.measure import batch_figures, measure_batches
from benchmarks.batch.methods import BatchRun
from benchmarks.drafting_cost import own_seconds
from benchmarks.first_token import FirstToken, first_token_figures
from benchmarks.methods import study_methods
from benchmarks.own_questions import AskedQuestion, question_figures
from benchmarks.replay import replay_samples, replay_steps, tokenize_sample
from benchmarks.retrieval import measure_retrieval
from benchmarks.vllm.measure import figures_with_ratios, measure_vllm, median_figures
from benchmarks.vllm.worker import Decoded, EngineAnswer
from tests.accel.adversarial_drafters import OracleDrafter, WrongDrafter
from tests.pipelines.recorded import SAMPLES

TOKENIZER: Any = byte_tokenizer()
EGGS = SpanQuestion("bees", "How many eggs?", "a.md", ("two thousand eggs",))
NOBODY = SpanQuestion("bees", "Who made it?", None, ())


# ---- replay


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_steps_of_a_replay_spell_the_answer(name: str) -> None:
    recording = tokenize_sample(SAMPLES[0], TOKENIZER)
    steps = list(replay_steps(recording, DRAFTERS[name](), num_draft_tokens=8))
    assert sum((step.tokens for step in steps), ()) == recording.answer
    assert (steps[0].drafted, len(steps[0].tokens)) == (0, 1), "the first step ends the prefill"
    assert all(step.drafted <= 8 and len(step.tokens) <= step.accepted + 1 for step in steps)
    assert [step.finish for step in steps] == [None] * (len(steps) - 1) + ["stop"]


def test_every_forward_pass_of_a_replay_counts() -> None:
    recording = tokenize_sample(SAMPLES[0], TOKENIZER)
    size, text = len(recording.answer), recording.prompt + recording.answer
    assert len(list(replay_steps(recording, Nothing(), num_draft_tokens=32))) == size
    assert len(list(replay_steps(recording, WrongDrafter(text, 4), num_draft_tokens=32))) == size
    assert len(list(replay_steps(recording, OracleDrafter(text, 3), num_draft_tokens=32))) == 1 + -(-(size - 1) // 4)


def test_samples_add_up_as_all_tokens_over_all_steps() -> None:
    one, other, both = (replay_samples(each, TOKENIZER, Copying, 32) for each in (SAMPLES[:1], SAMPLES[1:], SAMPLES))
    assert (both.steps, both.tokens) == (one.steps + other.steps, one.tokens + other.tokens)
    assert both.tokens_per_step == both.tokens / both.steps


def test_the_time_of_an_import_leaves_out_what_other_libraries_take() -> None:
    report = """import time: self [us] | cumulative | imported package
import time:       100 |        100 |     math
import time:      5000 |       5100 |   torch.nn
import time:     20000 |      25100 | torch
import time:        30 |         30 |   json
import time:         7 |          7 |     torch.extra
import time:        60 |         97 |   antiphon.one
import time:        10 |        137 | antiphon"""
    assert own_seconds(report, ("torch",)) == pytest.approx(100e-6)


# ---- speed


@pytest.mark.slow
def test_the_warm_drafter_learns_within_a_round_only() -> None:
    language_model = LanguageModel(tiny_model(seed=4), TOKENIZER, name="tiny")
    prompt = tuple(b"The hill is 84 feet high, and the hill")
    jobs = [Job(prompt), Job(prompt, references=("another request",))]
    methods = study_methods(["blend:8", "blend-warm:8"], None)
    _, cold, warm = measure_speed(language_model, jobs, methods, limit=60, rounds=3, warm_up=2).methods
    texts, others = ([[run.tokens for run in runs] for runs in each.rounds] for each in (warm, cold))
    assert texts == others
    steps = [[run.steps for run in runs] for runs in warm.rounds]
    assert steps[0] == steps[1] == steps[2]
    assert steps[0][0] == cold.rounds[0][0].steps
    assert steps[0][1] < cold.rounds[0][1].steps


def test_lookahead_windows_get_all_their_rows() -> None:
    methods: Any = study_methods(["lookahead:9"], 8, ["7,5,7", "15,5,3"], unread=True)[1:]
    assert [method.num_draft_tokens for method in methods] == [9, 55, 55, 71, 71]
    drafters = [method.drafter() for method in methods[1:]]
    settings = [(each.width, each.ngram, each.guesses, each.prompt_as_reference) for each in drafters]
    assert settings == [(7, 5, 7, True), (7, 5, 7, False), (15, 5, 3, True), (15, 5, 3, False)]


def test_shuffled_samples_have_references_of_other_samples() -> None:
    shuffled = speed.with_other_references(SAMPLES)
    assert [sample.references for sample in shuffled] == [SAMPLES[place].references for place in (1, 2, 0)]
    assert [sample.query for sample in shuffled] == [sample.query for sample in SAMPLES]
    with pytest.raises(ValueError, match="There is only 1 sample"):
        speed.with_other_references(SAMPLES[:1])


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


def test_times_to_the_first_token_are_medians_in_milliseconds() -> None:
    measured = [FirstToken("a", 0.2, 0.1), FirstToken("b", 0.4, 0.1), FirstToken("c", 9.0, 0.3)]
    assert first_token_figures(measured) == {"unread_ms": 400.0, "read_ms": 100.0, "sooner": pytest.approx(4.0)}


@dataclass
class ScriptedMethod:
    """A method with scripted outputs and durations."""

    name: str
    texts: tuple[int, ...]
    seconds: Sequence[float]
    is_baseline: bool = False
    asked: list[int] = field(default_factory=list)

    def __call__(self, language_model: Any, jobs: Sequence[Job], limit: int) -> BatchRun:
        self.asked.append(len(jobs))
        return BatchRun(tuple((each,) * limit for each in self.texts[: len(jobs)]), self.seconds[len(self.asked) - 1])


def test_figures_of_batches_are_medians_of_rounds_summed_over_batches() -> None:
    plain = ScriptedMethod("nothing", (1, 2), [9.0, 4.0, 2.0, 6.0, 2.0, 5.0, 2.0])
    other = ScriptedMethod("openvino-genai", (1, 3), [9.0, 1.0, 1.0, 1.0, 1.0, 9.0, 1.0], is_baseline=True)
    model: Any = None
    measured = measure_batches(model, [Job((1,))] * 3, (plain, other), at_once=2, limit=10, rounds=3)
    assert plain.asked == [2, 2, 1, 2, 1, 2, 1]
    slow, fast = batch_figures(measured)
    assert (slow["tokens"], slow["seconds"], slow["tokens_per_s"]) == (30, 7.0, 4.29)
    assert (fast["tokens_per_s"], fast["x_plain"], fast["x_best"], fast["identical"]) == (15.0, 3.5, 1.0, 0.6667)
    assert slow["x_best"] == 0.286


# ---- vLLM


class ScriptedEngine:
    """An engine of vLLM that takes a second for ``pace`` tokens."""

    def __init__(self, name: str, pace: float) -> None:
        self.name, self.pace = name, pace

    def decode(self, jobs: Sequence[Mapping[str, Any]], limit: int) -> Decoded:
        answers = [EngineAnswer(list(range(limit)), limit // 2, 5, 0.1) for _ in jobs]
        return Decoded(answers, 2.0, limit * len(jobs) / self.pace, limit * len(jobs))


def measured_vllm(**paces: float) -> list[Any]:
    jobs = [{"prompt": [number, 3], "sources": {"references": [f"{number}"]}} for number in range(3)]
    engines = [ScriptedEngine(name.replace("_", "-"), pace) for name, pace in paces.items()]
    return measure_vllm(engines, jobs, batches=[1], limit=6, least=2)


def test_ratios_of_vllm_are_of_the_paces_without_prompts_and_of_the_better_ngram() -> None:
    figures = measured_vllm(plain=10, ngram_5=12, ngram_8=16, antiphon=24)
    figures[1].decoded.answers[0].tokens[2] = 99
    plain, ngram, _, ours = figures_with_ratios(figures)
    assert (plain["x_plain"], ours["x_plain"], ours["x_ngram"], ours["x_suffix"]) == (1.0, 2.4, 1.5, None)
    assert (ours["tokens_per_step"], ours["drafted"], ours["accepted"], ours["x_plain_whole"]) == (2.0, 5.0, 3.0, 1.0)
    assert (ngram["identical"], ours["identical"]) == (0.5, 1.0)


def test_figures_of_several_rounds_are_medians_with_the_extremes_of_the_ratios() -> None:
    paces = ({"plain": 10, "ngram_8": 16, "suffix": 12, "antiphon": pace} for pace in (20, 24, 14))
    rounds = [figures_with_ratios(measured_vllm(**each)) for each in paces]
    rounds[1][3]["identical"] = 0.5
    rounds[2].reverse()
    ours = median_figures(rounds)[3]
    assert ours["method"] == "antiphon"
    assert [ours[f"x_lookup{each}"] for each in ("", "_least", "_most")] == [1.25, 0.875, 1.5]
    assert [ours[f"x_plain{each}"] for each in ("", "_least")] == [2.0, 1.4]
    assert (ours["requests"], ours["identical"], ours["rounds"]) == (2, 0.5, 3)
    [alone] = median_figures([figures_with_ratios(measured_vllm(plain=1))])
    assert [alone[key] for key in ("x_lookup", "x_lookup_least", "x_lookup_most")] == [None] * 3


# ---- answers and retrieval


def test_a_span_is_found_over_line_breaks_hyphens_and_marks() -> None:
    assert EGGS.is_in("| two thou-\nsand | **eggs** |")
    assert not EGGS.is_in("two hundred eggs")


def test_an_answer_is_right_with_70_percent_of_the_words_or_with_all_phrases_in_whole_words() -> None:
    asked = SpanQuestion("bees", "?", "a", ("one two three four five six seven eight nine ten",))
    assert asked.is_answered_by("ten nine eight seven six five FOUR")
    assert not asked.is_answered_by("ten nine eight seven six five")
    asked = SpanQuestion("bees", "?", "a", ("ten eggs on 19 January",), ("19 Jan|19 January", "not `thread safe`"))
    assert asked.is_answered_by("On 19\nJanuary it is *not* thread safe.")
    assert not asked.is_answered_by("On 119 January it is *not* thread safe.")
    assert not asked.is_answered_by("On 19 January it is thread safe.")


@pytest.mark.parametrize(
    ("cut", "rank", "quotable", "text", "lost"),
    [
        (False, 1, 1, "Two thousand eggs.", ""),
        (True, None, None, "No.", "chunking"),
        (False, None, None, "No.", "retrieval"),
        (False, 4, 4, "No.", "retrieval"),
        (False, 2, None, "No.", "prompt"),
        (False, 2, 2, "No.", "reader"),
    ],
)
def test_a_lost_answer_has_one_stage(cut: bool, rank: int | None, quotable: int | None, text: str, lost: str) -> None:
    assert AnswerTrace(EGGS, cut, rank, quotable, 3, text).lost_at == lost


def test_answerable_and_other_questions_are_counted_apart() -> None:
    right = AnswerTrace(EGGS, False, 1, 1, 3, "two thousand eggs")
    declined = AnswerTrace(EGGS, False, 4, 4, 3, "The passages do not say.")
    refused = AnswerTrace(NOBODY, False, None, None, 3, "The passages do not say.")
    row, every = answer_figures([right, declined, refused])
    assert row | {"corpus": "all"} == every
    assert (row["answerable"], row["unanswerable"], row["recall@3"], row["recall@5"]) == (2, 1, 0.5, 1.0)
    assert (row["right"], row["wrongly_declined"], row["declined"], row["lost_retrieval"]) == (0.5, 0.5, 1.0, 1)
    asked = AskedQuestion("bees", (), "?", ("x",), "right", True, "x", "?", ("a.md",), ("x",), 1, 0.5, 2.0)
    wrong = replace(asked, verdict="declined", is_found=False)
    other = replace(asked, expected=(), verdict="declined")
    row = question_figures("bees", [asked, wrong, other, replace(other, verdict="answered")])
    assert (row["right"], row["wrong"], row["declined"], row["recall@5"]) == (0.5, 0, 0.5, 0.5)
    assert (row["unanswerable_declined"], row["seconds"]) == (0.5, 2.0)


def outcomes_of(corpus: str, answerable: list[float], others: list[float]) -> list[Outcome]:
    """Return outcomes with these scores; all quoted lines are right."""
    return [
        *(Outcome(corpus, True, score, True, 1.0) for score in answerable),
        *(Outcome(corpus, False, score, False, 0.0) for score in others),
    ]


def test_the_threshold_separates_answers_from_refusals_and_is_that_of_other_corpora() -> None:
    assert choose_threshold(outcomes_of("a", [2.0, 3.0, 4.0], [0.0, 1.0])) == 2.0
    threshold = choose_threshold(outcomes_of("a", [0.0, 0.0, *(5.0 for _ in range(8))], [4.0] * 90))
    assert threshold <= 0.0, f"a fifth would be declined; at most {MAX_DECLINED:.0%} may be"
    outcomes = outcomes_of("low", [1.0], [0.0]) + outcomes_of("high", [11.0], [10.0])
    low, high, everything = held_out_rows("x", outcomes)
    assert (low["right"], low["declined"]) == (0.0, 1.0), "the other corpus's threshold is 11"
    assert (high["right"], high["declined"]) == (1.0, 0.0), "the other corpus's threshold is 1"
    assert (everything["right"], everything["declined"], everything["corpus"]) == (0.5, 0.5, "all")


def test_figures_of_searches_are_those_of_the_definitions() -> None:
    texts = {"alpha": ("alpha beta", "no word of it"), "gamma": ("gamma delta",)}
    samples = [RecordedSample(query, "rag", query, references, "", "") for query, references in texts.items()]
    words = next(finding for finding in measure_retrieval(samples, HashEmbedder()) if finding.method == "words (BM25)")
    assert words.recall == pytest.approx((1 / 2 + 1) / 2)
    assert words.mrr == 1
    assert words.ndcg == pytest.approx((1 / (1 + 1 / log2(3)) + 1) / 2)


def test_the_index_settings_that_are_compared() -> None:
    names = ["flat", "paper", "auto", "compact", "compact, k * 0", "compact, k * 8"]
    assert [each.name for each in indexing.settings(1000, 64)] == names
    assert "paper" not in [each.name for each in indexing.settings(1000, 100)]
    large = [each.factory for each in indexing.settings(1_000_000, 1024)]
    assert large == ["Flat", "IVF4096,PQ64", *["IVF4096,PQ128x4fsr"] * 3], "auto is compact, and stands there once"
