"""The demo end to end with the bundled models: index, ask, cite, and the same text without drafts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from antiphon.accel import LanguageModel
from antiphon.accel.processor import has_bfloat16_units
from antiphon.pipelines import Rag
from antiphon.pipelines.cli import demo
from antiphon.pipelines.data.demo import demo_documents
from antiphon.pipelines.models.bundled import BUNDLED
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


@pytest.mark.usefixtures("smollm2_folder")
def test_the_demo_answers_cites_and_compares(
    some_documents: list[Path], index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = ("What is garbage collection?",)
    assert demo.run_demo("smollm2", paths=some_documents, folder=index, questions=questions, engine="torch")
    shown = capsys.readouterr().out
    assert "small language model" in shown
    assert "antiphon demo --model some/hub-model" in shown
    assert "Python performs garbage collection via reference counting" in shown
    assert shown.count("Quoted verbatim from") == shown.count("tokens per step") == len(questions)
    assert "[1] glossary.txt, characters " in shown
    assert "The text is identical. Drafting took" in shown
    assert "cut off" not in shown


@pytest.mark.usefixtures("reader_folder")
def test_the_reader_answers_by_quoting(
    some_documents: list[Path], index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = ("What is garbage collection?", "What is a virtual environment?")
    assert demo.run_demo("reader", paths=some_documents, folder=index, questions=questions, engine="torch")
    shown = capsys.readouterr().out
    assert "small extractive model" in shown
    assert shown.count("Quoted verbatim from") == shown.count("tokens per step") == len(questions)
    assert "cut off" not in shown


RIGHT = ("has nothing to do with reptiles", "use collections.deque", "You can't use lists as keys")


@pytest.fixture(scope="module")
def some_pages(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    folder = tmp_path_factory.mktemp("pages") / "index"
    pages = [path for path in demo_documents() if path.stem in ("tutorial-appetite", "tutorial-datastructures")]
    build_index(pages, folder, embedder="minilm")
    return Retriever.open(folder)


UNITS = pytest.mark.skipif(
    not has_bfloat16_units(), reason="this processor has no units for bfloat16: it computes in float32 by itself"
)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=UNITS)])
def test_the_questions_of_the_demo_are_answered_right(
    reader_folder: Path, some_pages: Retriever, dtype: torch.dtype
) -> None:
    rag = Rag(some_pages, LanguageModel.from_pretrained(reader_folder, dtype=dtype, engine="torch"))
    for question, right in zip(demo.QUESTIONS, RIGHT, strict=True):
        assert right in rag.ask(question, max_new_tokens=demo.MAX_NEW_TOKENS).text


def test_every_embedded_model_is_introduced_by_name() -> None:
    assert all(demo.NOTES[model].startswith(f"{model} is ") for model in BUNDLED)


def test_a_difference_from_plain_decoding_is_shown(
    retriever: Retriever, tiny: LanguageModel, capsys: pytest.CaptureFixture[str]
) -> None:
    drafted, plain = (
        Rag(retriever, tiny).ask("How old is a queen?", max_new_tokens=9, drafter=each) for each in ("blend", "nothing")
    )
    assert demo.compare([drafted], [plain])
    assert "The text is identical" in capsys.readouterr().out
    assert not demo.compare([drafted, drafted], [plain, replace(plain, text="something else")])
    assert "The text differs" in capsys.readouterr().out
