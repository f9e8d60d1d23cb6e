"""Figures of the speed benchmark: sums over runs, and comparisons between methods."""

from __future__ import annotations

from typing import Any

from antiphon.pipelines.benchmark.methods import GREEDY
from antiphon.pipelines.benchmark.run import MethodRun
from antiphon.pipelines.benchmark.speed import MethodFigures, Speed
from antiphon.pipelines.cli.bench import best_baseline, is_lossless


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


def test_the_best_baseline_can_differ_end_to_end() -> None:
    def figures(name: str, seconds: float, first: float, is_baseline: bool) -> MethodFigures:
        return MethodFigures(name, [[run_of(11, first + seconds, first)] * 2], is_baseline)

    speed = Speed(
        (
            figures(GREEDY, 10.0, 1.0, True),
            figures("hf-lookup", 5.0, 1.0, True),
            figures("genai", 4.0, 4.0, True),
            figures("blend", 2.0, 2.0, False),
        )
    )
    shown = speed.as_dict()
    assert [each["speedup_best"] for each in shown] == [0.4, 0.8, 1.0, 2.0]
    assert [each["speedup_best_whole"] for each in shown] == [round(6 / 11, 3), 1.0, 0.75, 1.5]
    assert [each["first_token_ms"] for each in shown] == [1000.0, 1000.0, 4000.0, 2000.0]
    assert [each["is_baseline"] for each in shown] == [True, True, True, False]
    assert best_baseline(shown) == "best baseline: genai; end to end: hf-lookup"
    assert best_baseline(shown[:2]) == "best baseline: hf-lookup"


def test_only_our_own_outputs_must_be_identical() -> None:
    one, other = run_of(4, 2.0, 1.0), run_of(5, 2.0, 1.0)
    plain = MethodFigures(GREEDY, [[one]], True)
    theirs = Speed((plain, MethodFigures("genai", [[other]], True))).as_dict()
    ours = Speed((plain, MethodFigures("blend", [[other]]))).as_dict()
    assert theirs[1]["identical"] == ours[1]["identical"] == 0
    assert is_lossless("float32", theirs)
    assert not is_lossless("float32", ours)
