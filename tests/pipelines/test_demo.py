"""The demo end to end with the bundled model: index, ask, cite, and the same right texts from four programs."""

from dataclasses import replace
from pathlib import Path

import pytest

from antiphon.accel import LanguageModel
from antiphon.pipelines.benchmark.methods import Job, MethodRun
from antiphon.pipelines.benchmark.speed import MethodFigures, Speed
from antiphon.pipelines.cli import demo
from antiphon.pipelines.data.demo import demo_documents, demo_tasks

pytestmark = pytest.mark.slow


@pytest.mark.exhaustive
@pytest.mark.usefixtures("smollm2_folder")
def test_the_demo_answers_cites_and_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = [path for path in demo_documents() if path.stem in ("tutorial-appetite", "tutorial-datastructures")]
    monkeypatch.setattr(demo, "ROUNDS", 1)
    assert demo.run_demo("smollm2", paths=documents, folder=tmp_path / "index", engine="torch")
    shown = capsys.readouterr().out
    assert "[1] tutorial-appetite.txt, Whetting Your Appetite: “" in shown
    assert "use collections.deque" in shown
    assert all(task.answer in shown for task in demo_tasks()), "the bundled model does the tasks right"
    assert "not the expected answer" not in shown
    assert "The text is identical in all programs." in shown
    assert sum(line.strip().endswith("yes") for line in shown.splitlines()) == 4


def test_all_programs_of_the_race_generate_the_same_tokens(tiny: LanguageModel) -> None:
    jobs = [Job(tiny.tokenize(text).tokens, (text,)) for text in ("bees dance", "wax melts, wax melts")]
    measured = demo.run_race(tiny, jobs, 12)
    assert [figures.name for figures in measured.methods] == list(demo.PROGRAMS)
    assert len({tuple(run.tokens for run in runs) for figures in measured.methods for runs in figures.rounds}) == 1
    assert [len(figures.rounds) for figures in measured.methods] == [demo.ROUNDS] * 4
    greedy, *_, ours = demo.race_table(measured).columns[0].cells
    assert (str(greedy), str(ours)) == ("transformers, greedy", "Antiphon")
    assert [str(cell) for cell in demo.race_table(measured).columns[-1].cells] == ["yes"] * 4


def measured(*seconds: tuple[float, ...]) -> Speed:
    """Return the figures of four programs that did one task, from the seconds of their rounds."""
    run = MethodRun(tokens=(1, 2), seconds=0, first_token_seconds=0, steps=1, drafted=None)
    runs = [[[replace(run, seconds=each)] for each in rounds] for rounds in seconds]
    return Speed(tuple(MethodFigures(name, rounds) for name, rounds in zip(demo.PROGRAMS, runs, strict=True)))


def test_engine_and_drafts_are_two_factors_and_a_busy_machine_is_noticed() -> None:
    said = demo.factors(measured((8, 8, 80), (6, 6, 6), (4, 4, 4), (2, 1, 2)))
    assert "Engine: 2.00 times" in said
    assert "Drafts: 2.00 times" in said
    assert "Together 4.00, and 3.00 compared with transformers' prompt lookup." in said
    calm = measured((8, 8.1, 8), (6, 6, 6), (4, 4, 4), (2, 2, 2))
    assert demo.disturbance(calm, 0.1) == ""
    assert "a load of 1.5 per processor" in demo.disturbance(calm, 1.5)
    assert "differ by up to 50%" in demo.disturbance(measured((8, 8, 8), (6, 6, 6), (4, 4, 4), (2, 2, 3)), 0.0)
