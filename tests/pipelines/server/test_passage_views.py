"""Where a passage is: its neighbours, and its page in a PDF file, for clients that may read the collection."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from antiphon.accel import LanguageModel
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.passage_views import parts_by_page
from antiphon.retrieval import HashEmbedder, Passage, index_passages
from tests.pipelines.server.conftest import tiny_service
from tests.retrieval.pdf_files import lines, pages_of, shown

PDF = pages_of(shown(lines("Bees live in colonies.")), shown(lines("Keys are rotated", "once a year.")))
TEXTS = tuple(f"Sentence number {number} of the notes." for number in range(9))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of notes and of PDF files, one of which was replaced after it was indexed."""
    folder = tmp_path_factory.mktemp("views")
    for name in ("keys.pdf", "replaced.pdf"):
        (folder / name).write_bytes(PDF)
    (folder / "keys.txt").write_bytes(PDF)
    passages = [Passage.at("notes.txt", 100 * number, text) for number, text in enumerate(TEXTS)]
    for source in ("keys.pdf", "keys.txt", "missing.pdf"):
        passages.append(page_two(str(folder / source), "Keys are rotated\nonce a year."))
    passages.append(page_two(str(folder / "replaced.pdf"), "Locks are changed every month."))
    index_passages(passages, folder / "index", HashEmbedder())
    return folder


def page_two(source: str, text: str) -> Passage:
    return Passage.at(source, 30, text, {"page": "2"})


@pytest.fixture(scope="module")
def client(typist: LanguageModel, folder: Path) -> Iterator[TestClient]:
    with TestClient(create_app(tiny_service(typist, folder / "index"))) as client:
        yield client


def passage_id(folder: Path, name: str, text: str = "Keys are rotated\nonce a year.") -> str:
    return page_two(str(folder / name), text).id


def test_a_passage_comes_with_its_neighbours_in_the_order_of_the_document(client: TestClient) -> None:
    middle = Passage.at("notes.txt", 400, TEXTS[4]).id
    found = client.get(f"/passages/{middle}/context", params={"around": 3}).json()
    assert [each["text"] for each in found["passages"]] == list(TEXTS[1:8])
    assert (found["document"], found["before"], found["after"]) == ("notes.txt", 1, 1)
    first = client.get(f"/passages/{Passage.at('notes.txt', 0, TEXTS[0]).id}/context").json()
    assert ([each["text"] for each in first["passages"]], first["before"]) == (list(TEXTS[:3]), 0)


def test_the_page_of_an_indexed_pdf_is_drawn_with_the_boxes_of_the_quote(client: TestClient, folder: Path) -> None:
    identifier = passage_id(folder, "keys.pdf")
    [page] = client.get(f"/passages/{identifier}/pages").json()["data"]
    assert (page["page"], len(page["boxes"])) == (2, 2)
    [part] = client.get(f"/passages/{identifier}/pages", params={"start": 0, "end": 4}).json()["data"]
    assert len(part["boxes"]) == 1
    image = client.get(f"/passages/{identifier}/page.png", params={"page": 2})
    assert image.headers["content-type"] == "image/png"
    assert image.headers["cache-control"] == "private, no-store"
    assert Image.open(io.BytesIO(image.content)).size == (1224, 1584)


def test_an_uploaded_pdf_has_its_page_until_it_is_removed(client: TestClient) -> None:
    added = client.post("/documents", files={"file": ("up.pdf", PDF)}).raise_for_status().json()
    body: dict[str, Any] = {"model": "tiny+docs", "messages": [{"role": "user", "content": "When are keys rotated?"}]}
    options = {"include_segments": True}
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True, "stream_options": options}) as got:
        text = "".join(got.iter_lines())
    assert '"source":"up.pdf"' in text.replace(" ", "")
    index = client.app.state.service.collections["docs"].index  # type: ignore[attr-defined]
    [identifier] = index.ids_of("uploaded/up.pdf")
    assert client.get(f"/passages/{identifier}/page.png", params={"page": 1}).status_code == 200
    pages = client.get(f"/passages/{identifier}/pages").json()["data"]
    assert [each["page"] for each in pages] == [1, 2]
    assert all(each["boxes"] for each in pages)
    client.delete("/documents", params={"id": added["id"]}).raise_for_status()
    assert client.get(f"/passages/{identifier}/page.png", params={"page": 1}).status_code == 404


@pytest.mark.parametrize("name", ["keys.txt", "missing.pdf"])
def test_a_passage_without_a_pdf_file_has_no_page(client: TestClient, folder: Path, name: str) -> None:
    for view in ("pages", "page.png?page=2"):
        response = client.get(f"/passages/{passage_id(folder, name)}/{view}")
        assert response.status_code == 404
        assert str(folder) not in response.text


def test_a_file_that_was_replaced_after_it_was_indexed_is_not_shown(client: TestClient, folder: Path) -> None:
    identifier = passage_id(folder, "replaced.pdf", "Locks are changed every month.")
    assert client.get(f"/passages/{identifier}/pages").status_code == 404
    assert client.get(f"/passages/{identifier}/page.png", params={"page": 2}).status_code == 404


def test_only_the_pages_of_the_passage_are_shown(client: TestClient, folder: Path) -> None:
    identifier = passage_id(folder, "keys.pdf")
    for page in (0, 1, 3):
        assert client.get(f"/passages/{identifier}/page.png", params={"page": page}).status_code == 404
    for view in ("context", "pages", "page.png"):
        assert client.get(f"/passages/no-such-passage/{view}", params={"page": 2}).status_code == 404
        other = {"page": "2", "collection": "other"}
        assert client.get(f"/passages/{identifier}/{view}", params=other).status_code == 404


def test_a_part_of_a_passage_is_split_at_its_pages() -> None:
    passage = Passage.at("a.pdf", 100, "one two three", {"page": "4-5", "page_starts": [108]})
    assert list(parts_by_page(passage)) == [(4, "one two "), (5, "three")]
    assert list(parts_by_page(passage, 4, 7)) == [(4, "two")]
    assert list(parts_by_page(passage, 9, 13)) == [(5, "hree")]
    assert list(parts_by_page(Passage.at("a.txt", 0, "one"))) == []
