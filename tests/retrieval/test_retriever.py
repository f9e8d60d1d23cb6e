"""From files to passages: an index is built, reopened, reused, and refused if it does not fit."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from antiphon.retrieval import (
    HashEmbedder,
    IndexMismatch,
    MiniLMEmbedder,
    Passage,
    Retriever,
    build_index,
    index_passages,
    read_index,
)
from antiphon.retrieval.vector_index.flat import Vectors
from tests.retrieval.sample_files import read_document

TEXTS = {
    "cats.txt": "Cats sleep sixteen hours a day.\n\nA cat purrs when it is content, and sometimes when it is in pain.",
    "stars/sun.md": "# The Sun\n\nThe Sun is a star.\n\n## Age\n\nIt is about 4.6 billion years old.",
    "stars/moon.rst": "The Moon\n========\n\nThe Moon moves away from us by four centimetres a year.",
    "bread.html": "<title>Bread</title><h1>Yeast</h1><p>Yeast makes dough rise: it gives off carbon dioxide.</p>",
}


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    for name, text in TEXTS.items():
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "docs"


class Watching(HashEmbedder):
    """Records the embedded texts, and can fail after a number of calls."""

    def __init__(self, calls: int = 1000) -> None:
        super().__init__()
        self.embedded: list[str] = []
        self.calls = calls

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        self.calls -= 1
        if self.calls < 0:
            raise RuntimeError("no more power")
        self.embedded += texts
        return super().embed_documents(texts)


def test_a_question_finds_its_passage_and_its_place_in_the_file(docs: Path, minilm: MiniLMEmbedder) -> None:
    report = build_index([docs], docs.parent / "index", embedder=minilm)
    retriever = Retriever.open(docs.parent / "index", embedder=minilm)
    answers = {
        "How long do cats rest?": "sixteen hours",
        "What is the age of our star?": "4.6 billion",
        "How fast does the Moon drift off?": "four centimetres",
        "Why does dough get bigger?": "carbon dioxide",
    }
    for question, answer in answers.items():
        best = retriever.search(question)[0]
        assert answer in best.text
        document = read_document(best.source)
        assert document.text[best.start : best.end] == best.text
    assert (report.files, report.embedder, report.skipped, report.reused) == (4, "minilm", (), 0)
    assert report.passages == len(read_index(docs.parent / "index").passages)
    assert retriever.search("How old is the Sun?")[0].metadata["title"] == "The Sun > Age"


def test_an_index_opens_with_the_embedder_that_made_it_and_nothing_else(docs: Path) -> None:
    build_index([docs], docs.parent / "index", embedder="hash")
    retriever = Retriever.open(docs.parent / "index")
    assert retriever.embedder.name == "hash"
    assert retriever.reranker is not None
    assert retriever.reranker.name == "maxsim"
    assert "purrs" in retriever.search("when does a cat purrs")[0].text


@pytest.mark.parametrize(
    ("question", "k", "error", "message"),
    [
        ("", 5, ValueError, "The question is empty; ask something."),
        (None, 5, TypeError, "The question is NoneType; a string is needed."),
        ("why", 0, ValueError, "k is 0; the number of passages is a whole number from 1."),
        ("why", 2.0, ValueError, r"k is 2\.0; the number of passages is a whole number from 1."),
    ],
)
def test_bad_questions_are_refused(
    docs: Path, words: HashEmbedder, question: str, k: int, error: type[Exception], message: str
) -> None:
    build_index([docs], docs.parent / "index", embedder=words)
    with pytest.raises(error, match=message):
        Retriever.open(docs.parent / "index").search(question, k)


def test_only_new_texts_are_embedded_again(docs: Path) -> None:
    out = docs.parent / "index"
    first, second = Watching(), Watching()
    report = build_index([docs], out, embedder=first)
    (docs / "new.txt").write_text("A new file.")
    (docs / "cats.txt").unlink()
    shutil.copy(docs / "bread.html", docs / "copy.html")
    again = build_index([docs], out, embedder=second)
    assert second.embedded == ["A new file."]
    assert again.reused == again.passages - 1
    assert len(first.embedded) == report.passages
    store = read_index(out)
    fresh = HashEmbedder().embed_documents([passage.text_with_headings for passage in store.passages])
    assert np.array_equal(store.vectors, fresh)
    assert not any(passage.source.endswith("cats.txt") for passage in store.passages)


def test_equal_texts_are_embedded_once_and_take_one_place_with_both_files(docs: Path) -> None:
    shutil.copy(docs / "bread.html", docs / "copy.html")
    embedder = Watching()
    build_index([docs], docs.parent / "index", embedder=embedder)
    assert len(embedder.embedded) == len(set(embedder.embedded))
    found = Retriever.open(docs.parent / "index", reranker=None).search("yeast makes dough rise", 2)
    assert [Path(passage.source).name for passage in found] == ["bread.html", "moon.rst"]
    assert [Path(source).name for source in found[0].also_in] == ["copy.html"]
    assert found[0].id != found[1].id


def test_a_build_that_fails_leaves_the_old_index(docs: Path) -> None:
    out = docs.parent / "index"
    build_index([docs], out, embedder="hash")
    before = Retriever.open(out).search("cat", 3)
    (docs / "new.txt").write_text("A new file.")
    with pytest.raises(RuntimeError, match="no more power"):
        build_index([docs], out, embedder=Watching(calls=0))

    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "save":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_index([docs], out, embedder="hash", progress=interrupt)
    assert Retriever.open(out).search("cat", 3) == before


def test_another_embedder_is_refused_and_both_are_named(docs: Path, minilm: MiniLMEmbedder) -> None:
    out = docs.parent / "index"
    build_index([docs], out, embedder=HashEmbedder(64))
    with pytest.raises(IndexMismatch, match=r"with the embedder hash \(hash:words:64\), which is not minilm \(sha256-"):
        Retriever.open(out, embedder=minilm)
    with pytest.raises(IndexMismatch, match=r"hash \(hash:words:64\), which is not hash \(hash:words:256\)"):
        Retriever.open(out)
    assert Retriever.open(out, embedder=HashEmbedder(64)).search("cat")


def test_an_index_inside_the_folder_that_it_indexes_is_not_indexed(docs: Path) -> None:
    reports = [build_index([docs], docs / "index", embedder="hash") for _ in range(2)]
    assert [(report.files, report.skipped) for report in reports] == [(4, ()), (4, ())]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 513}, "max_tokens is 513, but hash reads 512 tokens and would cut off the rest."),
        ({"max_tokens": 3}, "max_tokens is 3; a passage needs room for at least 8 tokens."),
    ],
)
def test_options_out_of_range_write_nothing(docs: Path, options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_index([docs], docs.parent / "index", embedder="hash", **options)  # type: ignore[arg-type]
    assert not (docs.parent / "index").exists()


def test_progress_is_reported_stage_by_stage(docs: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    report = build_index([docs], docs.parent / "index", embedder="hash", progress=lambda *step: steps.append(step))
    assert list(dict.fromkeys(stage for stage, _, _ in steps)) == ["load", "chunk", "embed", "save"]
    ends = {stage: (done, total) for stage, done, total in steps}
    assert ends == {"load": (4, 4), "chunk": (4, 4), "embed": (report.passages, report.passages), "save": (1, 1)}


def test_indexed_passages_keep_all_their_fields(tmp_path: Path, words: HashEmbedder) -> None:
    given = [
        Passage.at("a name", 7, "Zürich lies at a lake. Zürich! 🙂", {"title": "Zürich", "page": "3"}),
        Passage.at("other", 0, "Nothing\0 at all, in two\r\nlines."),
    ]
    assert index_passages(given, tmp_path / "index", words) == 0
    store = read_index(tmp_path / "index")
    assert list(store.passages) == given
    assert [store.passages[1], store.passages[0]] == given[::-1]
    assert store.token_counts is not None
    assert store.token_counts[words.token_ids(["zürich"])[0]].tolist() == [1]
    assert store.token_counts[words.token_ids(["at"])[0]].tolist() == [2]
    with pytest.raises(IndexError, match="There is no passage 2; rows are 0 to 1"):
        store.passages[2]
