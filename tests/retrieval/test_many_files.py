"""A thousand mixed files in one run: memory stays bounded, Ctrl-C stops it, and the next run goes on from there."""

import json
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from antiphon.retrieval import HashEmbedder, build_index, load_documents, read_index
from antiphon.retrieval.index_folder.unfinished import read_unfinished
from antiphon.retrieval.vector_index.flat import Vectors
from tests.retrieval.pdf_files import lines, pages_of, shown

pytestmark = pytest.mark.slow

FILES = 500


MAKERS: dict[str, Callable[[str], bytes]] = {
    "txt": str.encode,
    "md": lambda text: f"# Title\n\n{text}".encode(),
    "html": lambda text: f"<h1>Title</h1><p>{text}</p>".encode(),
    "csv": lambda text: f"name,note\npump,{text}\n".encode(),
    "json": lambda text: json.dumps([{"note": text}]).encode(),
    "pdf": lambda text: pages_of(shown(lines(text))),
    "py": lambda text: f'"""{text}"""\n'.encode(),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixed") / "docs"
    folder.mkdir()
    for number in range(FILES):
        suffix = [*MAKERS][number % len(MAKERS)]
        content = MAKERS[suffix](f"Valve {number} is opened slowly while pump {number} is running.")
        (folder / f"{number:04}.{suffix}").write_bytes(content)
    return folder


def test_memory_stays_flat_over_five_hundred_files(folder: Path) -> None:
    held: list[int] = []

    def sample(stage: str, done: int, total: int) -> None:
        if done in (100, 200, 300, 400, 500):
            held.append(tracemalloc.get_traced_memory()[0])

    load_documents([folder])  # loads all parsers
    tracemalloc.start()
    try:
        loaded = load_documents([folder], progress=sample)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [len(loaded.documents), loaded.skipped] == [FILES, ()]
    growth = [after - before for before, after in pairwise(held)]
    assert max(growth) < 750_000, "100 files hold their documents, and nothing else"
    assert peak < held[-1] + 4_000_000


class Slow(HashEmbedder):
    """Counts the embedded texts, and is interrupted like by Ctrl-C after a number of blocks."""

    block = 50

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = blocks
        self.embedded = 0

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        if self.blocks == 0:
            raise KeyboardInterrupt
        self.blocks -= 1
        self.embedded += len(texts)
        return super().embed_documents(texts)


def test_an_interrupted_run_is_resumed(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    first = Slow(blocks=6)
    with pytest.raises(KeyboardInterrupt):
        build_index([folder], out, embedder=first)
    assert first.embedded == 300
    second = Slow(blocks=1000)
    report = build_index([folder], out, embedder=second)
    assert [report.files, report.reused, second.embedded] == [FILES, 300, report.passages - 300]
    store = read_index(out)
    fresh = HashEmbedder().embed_documents([passage.text_with_headings for passage in store.passages])
    assert (store.vectors == fresh).all()
    assert [path.name for path in out.glob(".unfinished*")] == [], "the file is removed when the index is complete"


def test_vectors_of_another_embedder_or_of_a_damaged_file_are_not_used(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_index([folder / "0000.txt", folder / "0001.md"], tmp_path / "index", embedder=SlowOnce())
    text = "# Title\n\nValve 1 is opened slowly while pump 1 is running."  # the longest text comes first
    name = SlowOnce().fingerprint
    assert [*read_unfinished(tmp_path / "index", name, [text, "other"])] == [text]
    assert read_unfinished(tmp_path / "index", "another", [text]) == {}
    [saved] = (tmp_path / "index").glob(".unfinished*")
    saved.write_bytes(saved.read_bytes()[:100])
    assert read_unfinished(tmp_path / "index", name, [text]) == {}
    assert build_index([folder / "0001.md"], tmp_path / "index", embedder=HashEmbedder()).reused == 0


class SlowOnce(Slow):
    """Embeds one text."""

    block = 1

    def __init__(self) -> None:
        super().__init__(blocks=1)
