"""The demo end to end with the bundled models: index, ask, cite, and the same text from three programs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from antiphon.accel import LanguageModel
from antiphon.accel.processor import has_bfloat16_units
from antiphon.pipelines import Rag
from antiphon.pipelines.benchmark.run import Job
from antiphon.pipelines.cli import demo
from antiphon.pipelines.data.demo import demo_documents
from antiphon.retrieval import Retriever, build_index, load_embedder

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def some_documents() -> list[Path]:
    try:
        load_embedder("minilm")
    except ImportError as error:
        pytest.skip(f"the embedded embedder is not installed: {error}")
    return [path for path in demo_documents() if path.name == "glossary.txt"]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index folder that the first demo writes and the second one reuses."""
    return tmp_path_factory.mktemp("demo") / "index"


@pytest.mark.exhaustive
@pytest.mark.usefixtures("smollm2_folder")
def test_the_demo_answers_cites_and_compares(
    some_documents: list[Path], index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "MAX_NEW_TOKENS", 32)
    monkeypatch.setattr(demo, "RACE_TOKENS", 16)
    questions = ("What is garbage collection?",)
    assert demo.run_demo("smollm2", paths=some_documents, folder=index, questions=questions, engine="torch")
    shown = capsys.readouterr().out
    assert "small language model" in shown
    assert "antiphon demo --model some/hub-model" in shown
    assert "Python performs garbage collection via reference counting" in shown
    assert "[1] glossary.txt, Garbage collection: “" in shown
    assert "The text is identical in all programs." in shown
    assert sum(line.strip().endswith("yes") for line in shown.splitlines()) == 3


RIGHT = ("has nothing to do with reptiles", "use collections.deque", "You can't use lists as keys")


@pytest.fixture(scope="module")
def some_pages(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    folder = tmp_path_factory.mktemp("pages") / "index"
    pages = [path for path in demo_documents() if path.stem in ("tutorial-appetite", "tutorial-datastructures")]
    build_index(pages, folder, embedder="minilm")
    return Retriever.open(folder)


OWN, OTHER = (torch.bfloat16, torch.float32) if has_bfloat16_units() else (torch.float32, torch.bfloat16)
"""The dtype in which this processor runs the demo, and the other one."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [OWN, pytest.param(OTHER, marks=pytest.mark.exhaustive)])
def test_the_questions_of_the_demo_are_answered_right(
    reader_folder: Path, some_pages: Retriever, dtype: torch.dtype
) -> None:
    rag = Rag(some_pages, LanguageModel.from_pretrained(reader_folder, dtype=dtype, engine="torch"))
    for question, right in zip(demo.QUESTIONS, RIGHT, strict=True):
        assert right in rag.ask(question, max_new_tokens=demo.MAX_NEW_TOKENS).text


def test_all_programs_of_the_race_generate_the_same_tokens(tiny: LanguageModel) -> None:
    jobs = [Job(tiny.tokenize(text).tokens, (text,)) for text in ("bees dance", "wax melts, wax melts")]
    measured = demo.run_race(tiny, jobs, 12)
    assert [figures.name for figures in measured.methods] == list(demo.PROGRAMS)
    assert len({tuple(run.tokens for run in figures.rounds[0]) for figures in measured.methods}) == 1
    assert {figures.tokens for figures in measured.methods} == {24}
    shown = [str(cell) for cell in demo.race_table(measured).columns[0].cells]
    assert len(shown) == len(demo.PROGRAMS) == 4
    assert [str(cell) for cell in demo.race_table(measured).columns[-1].cells] == ["yes"] * 4
