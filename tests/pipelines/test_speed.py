"""Speed benchmark: the figures are consistent, and they and identical outputs are shown."""

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.accel import LanguageModel
from antiphon.accel.processor import processor_name
from antiphon.pipelines.benchmark.methods import (
    GREEDY,
    NAMES,
    Job,
    MethodRun,
)
from antiphon.pipelines.benchmark.speed import MethodFigures, Speed, measure_speed
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.bench import is_lossless
from benchmarks.record import as_line
from tests.pipelines.recorded import SAMPLES, antiphon


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


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(("calls", "rounds", "jobs"), [(3, 1, 1), (7, 1, 2), (9, 2, 2)])
def test_an_interruption_keeps_what_every_method_has_decoded(
    calls: int, rounds: int, jobs: int, tiny: LanguageModel
) -> None:
    order: list[tuple[str, int]] = []
    methods = [Noting(GREEDY, order, calls), Noting("blend", order, calls)]
    measured = measure_speed(tiny, TWO_JOBS, methods, limit=3, rounds=3, warm_up=0).methods
    assert [[len(each) for each in figures.rounds] for figures in measured] == [[jobs] * rounds] * 2


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("speed") / "rows.jsonl"
    path.write_text("\n".join(map(as_line, SAMPLES)), encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.exhaustive
def test_speed_is_shown_as_tables_and_one_line(file: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console.out, "_width", 200)  # in a narrow table, long numbers fold the names
    options = ("--num-draft-tokens", 8, "--task", "rag", "--limit", 2, "--max-new-tokens", 6, "--rounds", 1, "--json")
    shown = antiphon("bench", "speed", file, "--model", tiny_folder, *options)
    assert shown.exit_code == 0, shown.stderr
    lines = shown.stdout.splitlines()
    facts = json.loads(lines[-1])
    assert all(any(f" {name} " in line for line in lines) for name in NAMES)
    assert (facts["kind"], facts["file"], facts["task"], facts["samples"]) == ("speed", "rows.jsonl", "rag", 2)
    assert (facts["replayed"], facts["dtype"], facts["device"], facts["rows"]) == (False, "float32", "cpu", "8")
    assert facts["processor"] == processor_name()
    assert any(processor_name() in line for line in lines)
    assert [each["method"] for each in facts["methods"]] == list(NAMES)
    assert all(each["identical"] == 1 and each["tokens_per_s"] > 0 for each in facts["methods"])


def run_of(tokens: int, seconds: float, first: float, **more: Any) -> MethodRun:
    return MethodRun(
        tuple(range(tokens)), seconds, first, more.pop("steps", tokens - 1), more.pop("drafted", 0), **more
    )


def test_figures_are_medians_of_rounds_summed_over_jobs() -> None:
    rounds = [[run_of(11, 6.0, 1.0), run_of(21, 3.0, 1.0)], [run_of(11, 3.0, 1.0), run_of(21, 9.0, 1.0)]]
    rounds.append([run_of(11, 2.0, 1.0), run_of(21, 5.0, 1.0)])
    figures = MethodFigures("hf-greedy", rounds)
    assert figures.total(lambda run: run.decode_seconds) == 2.0 + 4.0
    assert figures.seconds_per_token == 6.0 / 30
    assert figures.end_to_end_seconds_per_token == 8.0 / 32
    shown = figures.as_dict()
    assert (shown["tokens"], shown["steps"], shown["tokens_per_step"]) == (32, 30, 1.0)
    assert (shown["tokens_per_s"], shown["ms_per_step"], shown["prefill_seconds"]) == (5.0, 200.0, 2.0)
    assert shown["draft_ms_per_step"] is None


def test_speed_ups_are_relative_to_greedy_decoding_and_to_the_faster_prompt_lookup() -> None:
    times = {"hf-greedy": 9.0, "hf-lookup": 5.0, "hf-lookup-n3": 3.0, "blend": 2.0}
    speed = Speed(tuple(MethodFigures(name, [[run_of(9, 1 + time, 1.0)]]) for name, time in times.items()))
    blend = speed.as_dict()[-1]
    assert (blend["speedup"], blend["speedup_lookup"], blend["speedup_whole"]) == (4.5, 1.5, round(10 / 3, 3))
    assert blend["speedup_rounds"] == [4.5]
    alone = Speed((speed.methods[0], speed.methods[-1])).as_dict()[-1]
    assert alone["speedup_lookup"] is None


def test_only_our_own_outputs_must_be_identical() -> None:
    one, other = run_of(4, 2.0, 1.0), run_of(5, 2.0, 1.0)
    plain = MethodFigures(GREEDY, [[one]], True)
    theirs = Speed((plain, MethodFigures("genai", [[other]], True))).as_dict()
    ours = Speed((plain, MethodFigures("blend", [[other]]))).as_dict()
    assert theirs[1]["identical"] == ours[1]["identical"] == 0
    assert is_lossless("float32", theirs)
    assert not is_lossless("float32", ours)
