"""Replay: counts the forward passes of recorded answers without running a model."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from antiphon.accel.drafting.draft import Accepted, Draft, Tokens, chain
from antiphon.accel.drafting.drafters import DRAFTERS, Blend, Copying, Nothing
from antiphon.accel.testing.drafters import OracleDrafter, WrongDrafter
from antiphon.accel.testing.tiny import byte_tokenizer
from antiphon.pipelines.benchmark.samples import RecordedSample, load_samples
from antiphon.pipelines.cli.bench import app
from benchmarks.drafting_cost import import_seconds, measure_drafting, own_seconds, synthetic_recording
from benchmarks.replay import Recording, replay_samples, replay_steps, tokenize_sample

pytestmark = pytest.mark.slow

ROW: dict[str, Any] = {
    "id": "one",
    "task": "rag",
    "query": "Where?",
    "references": ["The museum stands on the hill above the river.", "It opens at nine."],
    "prompt": "Read and answer: where?",
    "response": "The museum stands on the hill and opens at nine.",
}
SAMPLE = RecordedSample(**{**ROW, "references": tuple(ROW["references"])})
TOKENIZER: Any = byte_tokenizer()


def written(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


class Diary:
    """Drafts the chain ``guess`` in each step, and records the arguments of all calls."""

    def __init__(self, guess: Tokens) -> None:
        self.guess = guess
        self.begun: list[Any] = []
        self.contexts: list[tuple[int, ...]] = []
        self.seen: list[tuple[Draft, Accepted, Any]] = []

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        self.begun.append((tuple(prompt), tuple(map(tuple, references))))

    def propose(self, context: Tokens, budget: int) -> Draft:
        self.contexts.append(tuple(context))
        return chain(self.guess)

    def observe(self, draft: Draft, accepted: Accepted, logits: Any) -> None:
        self.seen.append((draft, accepted, logits))


def test_only_the_prompt_gets_special_tokens_and_the_answer_ends() -> None:
    recording = tokenize_sample(SAMPLE, TOKENIZER)
    assert TOKENIZER.decode(recording.prompt[1:]) == ROW["prompt"]
    assert recording.prompt[0] == TOKENIZER.bos_token_id
    assert TOKENIZER.bos_token_id not in (*recording.answer, *recording.references[0])
    assert recording.answer[-1] == TOKENIZER.eos_token_id
    assert TOKENIZER.decode(recording.answer[:-1]) == ROW["response"]
    assert [TOKENIZER.decode(each) for each in recording.references] == ROW["references"]


def test_a_tokenizer_without_an_end_is_refused() -> None:
    class Endless:
        eos_token_id = None

        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return list(text.encode())

    with pytest.raises(ValueError, match="no end-of-sequence token"):
        tokenize_sample(SAMPLE, Endless())


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_steps_spell_the_answer(name: str) -> None:
    recording = tokenize_sample(SAMPLE, TOKENIZER)
    steps = list(replay_steps(recording, DRAFTERS[name](), num_draft_tokens=8))
    assert sum((step.tokens for step in steps), ()) == recording.answer
    assert (steps[0].drafted, len(steps[0].tokens)) == (0, 1), "the first step ends the prefill"
    assert all(step.drafted <= 8 and len(step.tokens) <= step.accepted + 1 for step in steps)
    assert [step.finish for step in steps] == [None] * (len(steps) - 1) + ["stop"]


def test_every_forward_counts() -> None:
    recording = tokenize_sample(SAMPLE, TOKENIZER)
    size = len(recording.answer)
    text = recording.prompt + recording.answer
    assert len(list(replay_steps(recording, Nothing(), num_draft_tokens=32))) == size
    assert len(list(replay_steps(recording, WrongDrafter(text, 4), num_draft_tokens=32))) == size
    assert len(list(replay_steps(recording, OracleDrafter(text, 3), num_draft_tokens=32))) == 1 + -(-(size - 1) // 4)


def test_the_drafter_lives_as_in_decoding() -> None:
    recording = Recording((1, 2), ((3, 4),), (5, 6, 7, 5, 6, 9))
    diary = Diary((6, 7))
    list(replay_steps(recording, diary, num_draft_tokens=2))
    assert diary.begun == [((1, 2), ((3, 4),))]
    assert diary.contexts == [(1, 2, 5), (1, 2, 5, 6, 7, 5)]
    assert [(len(draft), accepted.tokens) for draft, accepted, _ in diary.seen] == [
        (0, (5,)),
        (2, (6, 7, 5)),
        (2, (6, 9)),
    ]
    assert {logits for *_, logits in diary.seen} == {None}


def test_the_last_step_is_cut_at_the_end_of_the_answer() -> None:
    steps = list(replay_steps(Recording((1,), (), (5, 6, 7)), Diary((6, 7, 8, 9)), num_draft_tokens=9))
    assert [step.tokens for step in steps] == [(5,), (6, 7)]


def test_a_draft_over_the_budget_is_trimmed() -> None:
    steps = list(replay_steps(Recording((1,), (), (5, 6, 7, 8, 9)), Diary((6, 7, 8, 9)), num_draft_tokens=2))
    assert [(step.drafted, step.tokens) for step in steps] == [(0, (5,)), (2, (6, 7, 8)), (2, (9,))]


def test_no_rows_is_plain_decoding() -> None:
    recording = tokenize_sample(SAMPLE, TOKENIZER)
    assert len(list(replay_steps(recording, Blend(), num_draft_tokens=0))) == len(recording.answer)
    with pytest.raises(ValueError, match="num_draft_tokens is -1"):
        list(replay_steps(recording, Blend(), num_draft_tokens=-1))


def test_samples_add_up_as_all_tokens_over_all_steps() -> None:
    short = RecordedSample(**{**ROW, "references": (), "response": "No."})
    one, other, both = (replay_samples(each, TOKENIZER, Copying, 32) for each in ([SAMPLE], [short], [SAMPLE, short]))
    assert (both.steps, both.tokens) == (one.steps + other.steps, one.tokens + other.tokens)
    assert both.tokens_per_step == both.tokens / both.steps
    assert one.tokens_per_step > other.tokens_per_step


def test_samples_are_read_in_order_and_chosen_by_task_and_number(tmp_path: Path) -> None:
    path = written(
        tmp_path / "rows.jsonl", ROW, "", {**ROW, "id": "two", "task": "chat", "turn": 1}, {**ROW, "id": "three"}
    )
    assert [sample.id for sample in load_samples(path)] == ["one", "two", "three"]
    assert [sample.id for sample in load_samples(path, task="rag")] == ["one", "three"]
    assert [sample.id for sample in load_samples(path, task="rag", limit=1)] == ["one"]
    assert load_samples(path)[0] == SAMPLE


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "rows.jsonl, line 2 is not JSON"),
        ("[1]", "line 2 has no id, task, query, prompt, response, references; a sample needs"),
        ({key: value for key, value in ROW.items() if key != "response"}, "line 2 has no response; a sample needs"),
        ({**ROW, "prompt": 3}, "line 2: prompt needs to be text"),
        ({**ROW, "references": "text"}, "line 2: references needs to be a list of texts"),
        ({**ROW, "references": [1]}, "line 2: references needs to be a list of texts"),
    ],
)
def test_a_broken_line_is_named_by_its_number(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_samples(written(tmp_path / "rows.jsonl", ROW, row))


def test_a_file_without_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no file .*none\.jsonl; give a JSONL file"):
        load_samples(tmp_path / "none.jsonl")
    path = written(tmp_path / "rows.jsonl", ROW)
    with pytest.raises(ValueError, match="no samples of task 'chat'; the tasks in it: rag"):
        load_samples(path, task="chat")
    with pytest.raises(ValueError, match="has no samples; the tasks in it: none"):
        load_samples(written(tmp_path / "empty.jsonl"))
    with pytest.raises(ValueError, match="limit is 0"):
        load_samples(path, limit=0)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("replay")
    TOKENIZER.save_pretrained(folder / "tokenizer")
    return str(written(folder / "rows.jsonl", ROW, {**ROW, "id": "two"})), str(folder / "tokenizer")


def test_the_last_line_is_one_json_object(files: tuple[str, str]) -> None:
    file, tokenizer = files
    arguments = ["replay", file, "--tokenizer", tokenizer, "--drafter", "copying", "--num-draft-tokens", "16", "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    figures = json.loads(result.stdout.splitlines()[-1])
    summary = replay_samples(load_samples(file), TOKENIZER, Copying, 16)
    assert (figures["drafter"], figures["rows"], figures["samples"]) == ("copying", 16, 2)
    assert (figures["steps"], figures["tokens"]) == (summary.steps, summary.tokens)
    assert figures["tokens_per_step"] == round(summary.tokens_per_step, 3)
    assert figures["rows_per_step"] == round(summary.rows_per_step, 2)
    assert figures["draft_ms_per_step"] > 0


def test_every_drafter_is_replayed_unless_one_is_named(files: tuple[str, str]) -> None:
    file, tokenizer = files
    arguments = ["replay", file, "--tokenizer", tokenizer, "--limit", "1"]
    table = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    assert all(name in table for name in DRAFTERS)
    result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    figures = json.loads(result.stdout.splitlines()[-1])["drafters"]
    assert [each["drafter"] for each in figures] == list(DRAFTERS)
    assert figures[0]["tokens_per_step"] == 1.0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"--drafter": "bushel"}, "There is no drafter named 'bushel'"),
        ({"--task": "chat"}, "no samples of task 'chat'"),
        ({"--num-draft-tokens": "-1"}, "num_draft_tokens is -1"),
    ],
)
def test_what_cannot_be_replayed_is_said(files: tuple[str, str], changed: dict[str, str], message: str) -> None:
    options = {"--tokenizer": files[1], **changed}
    arguments = ["replay", files[0], *(word for option in options.items() for word in option)]
    with pytest.raises(ValueError, match=message):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_a_folder_without_a_tokenizer_is_named(files: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"No tokenizer can be loaded from .*; give its folder"):
        CliRunner().invoke(app, ["replay", files[0], "--tokenizer", str(tmp_path)], catch_exceptions=False)


def test_drafting_is_measured_for_every_drafter_and_size() -> None:
    report = measure_drafting(num_draft_tokens=4, sizes=(300, 900), rounds=1)
    assert [cost.drafter for cost in report.costs] == list(DRAFTERS)
    for cost in report.costs[1:]:
        assert set(cost.draft_ms) == set(cost.build_ms) == {300, 900}
        assert all(ms > 0 for ms in (*cost.draft_ms.values(), *cost.build_ms.values()))
        assert cost.build_ratio == cost.build_ms[900] / cost.build_ms[300]
    assert json.loads(json.dumps(report.as_dict()))["drafters"][3]["draft_ms_900"] >= 0
    assert report.import_seconds > 0


def test_the_texts_that_drafting_is_measured_on_are_quoted_and_always_the_same() -> None:
    recording = synthetic_recording(1000)
    assert recording == synthetic_recording(1000)
    assert sum(map(len, recording.references)) == 1000
    summary = sum(1 for _ in replay_steps(recording, Blend(), num_draft_tokens=32))
    assert len(recording.answer) > 2 * summary


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


def test_a_light_import_is_measured_in_a_fresh_interpreter() -> None:
    assert 0 < import_seconds("antiphon.accel.drafting.draft", beyond=("heapq",)) < 30
