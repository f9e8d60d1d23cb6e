"""Where a passage is: its neighbours, and its page in a PDF file, for clients that may read the collection."""

import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from antiphon.accel import LanguageModel
from antiphon.pipelines.server import passage_views
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.passage_views import MAX_PAGES
from antiphon.retrieval import HashEmbedder, Passage, index_passages
from tests.pipelines.server.conftest import tiny_service
from tests.retrieval.pdf_files import lines, pages_of, shown

PDF = pages_of(shown(lines("Bees live in colonies.")), shown(lines("Keys are rotated", "once a year.")))
SHORT_PAGES = tuple(f"Rule {number} is short." for number in range(10, 10 + MAX_PAGES + 2))
TEXTS = tuple(f"Sentence number {number} of the notes." for number in range(9))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of notes and of PDF files, one of which was replaced after it was indexed."""
    folder = tmp_path_factory.mktemp("views")
    for name in ("keys.pdf", "replaced.pdf"):
        (folder / name).write_bytes(PDF)
    (folder / "keys.txt").write_bytes(PDF)
    (folder / "rules.pdf").write_bytes(pages_of(*(shown(lines(text)) for text in SHORT_PAGES)))
    passages = [Passage.at("notes.txt", 100 * number, text) for number, text in enumerate(TEXTS)]
    for source in ("keys.pdf", "keys.txt", "missing.pdf"):
        passages.append(page_two(str(folder / source), "Keys are rotated\nonce a year."))
    passages.append(page_two(str(folder / "replaced.pdf"), "Locks are changed every month."))
    passages.append(many_pages(str(folder / "rules.pdf")))
    index_passages(passages, folder / "index", HashEmbedder())
    return folder


def page_two(source: str, text: str) -> Passage:
    return Passage.at(source, 30, text, {"page": "2"})


def many_pages(source: str) -> Passage:
    """Return a passage of all short pages."""
    length = len(SHORT_PAGES[0]) + 1
    starts = [length * place for place in range(1, len(SHORT_PAGES))]
    return Passage.at(source, 0, "\n".join(SHORT_PAGES), {"page": f"1-{len(SHORT_PAGES)}", "page_starts": starts})


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


def test_a_document_is_read_in_parts_with_the_numbers_of_its_pages(
    client: TestClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = {each["name"]: each["id"] for each in client.get("/documents").json()["data"]}
    rules = client.get("/documents/passages", params={"id": ids["rules.pdf"]}).json()["data"]
    assert [each["pages"] for each in rules] == [list(range(1, len(SHORT_PAGES) + 1))]
    monkeypatch.setattr(passage_views, "MAX_NEIGHBOURS", 5)
    first = client.get("/documents/passages", params={"id": ids["notes.txt"]}).json()
    rest = client.get("/documents/passages", params={"id": ids["notes.txt"], "start": first["next"]}).json()
    assert [each["text"] for each in (*first["data"], *rest["data"])] == list(TEXTS)
    assert (first["next"], rest["next"]) == (5, None)
    assert client.get("/documents/passages", params={"id": str(folder / "rules.pdf")}).status_code == 404


@pytest.mark.parametrize(
    ("sources", "folders"),
    [
        (("/srv/docs/a.md", "/srv/docs/rules/b.md", "/srv/docs/rules/old/c.md"), ["", "rules", "rules/old"]),
        (("guide/a.md", "rules/b.md"), ["guide", "rules"]),
        (("C:\\docs\\a.md", "C:\\docs\\rules\\b.md"), ["", "rules"]),
        (("/home/ana/a.md", "/srv/b.md"), ["", ""]),  # no path of the machine is revealed
        (("/home/ana/a.md", "b.md"), ["", ""]),
    ],
)
def test_documents_have_folders_below_the_one_that_they_share(
    typist: LanguageModel, tmp_path: Path, sources: tuple[str, ...], folders: list[str]
) -> None:
    index_passages([Passage.at(each, 0, f"Text of {each}.") for each in sources], tmp_path / "index", HashEmbedder())
    with TestClient(create_app(tiny_service(typist, tmp_path / "index"))) as client:
        assert [each["folder"] for each in client.get("/documents").json()["data"]] == folders


def test_example_questions_come_from_headings_and_questions_come_first(typist: LanguageModel, tmp_path: Path) -> None:
    titles = {"a.md": ("Handbook", "Handbook > Lost keys"), "b.md": ("FAQ > Who has a key?",), "c.txt": ("",)}
    passages = [
        Passage.at(source, place, f"{title} {source}", {"title": title} if title else {})
        for source, found in titles.items()
        for place, title in enumerate(found)
    ]
    index_passages(passages, tmp_path / "index", HashEmbedder())
    with TestClient(create_app(tiny_service(typist, tmp_path / "index"))) as client:
        found = client.get("/documents/questions").json()["data"]
    assert found == ["Who has a key?", "What do the documents say about “Lost keys”?"]


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


def test_the_first_pages_of_a_passage_on_many_pages_are_shown(client: TestClient, folder: Path) -> None:
    identifier = many_pages(str(folder / "rules.pdf")).id
    pages = client.get(f"/passages/{identifier}/pages").json()["data"]
    assert [each["page"] for each in pages] == list(range(1, MAX_PAGES + 1))
    assert all(each["boxes"] for each in pages)
    start = len("\n".join(SHORT_PAGES)) - len(SHORT_PAGES[-1])
    [last] = client.get(f"/passages/{identifier}/pages", params={"start": start}).json()["data"]
    assert last["page"] == MAX_PAGES + 2


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


def test_at_most_two_pdf_files_are_in_memory(client: TestClient, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    three, met = threading.Barrier(3), threading.Event()

    def draw(data: bytes, page: int) -> bytes:
        with suppress(threading.BrokenBarrierError):
            three.wait(timeout=0.3)
            met.set()
        return b""

    monkeypatch.setattr(passage_views, "draw_page", draw)
    path = f"/passages/{passage_id(folder, 'keys.pdf')}/page.png?page=2"
    with ThreadPoolExecutor(6) as pool:
        assert [each.status_code for each in pool.map(client.get, [path] * 6)] == [200] * 6
    assert not met.is_set()


@pytest.mark.parametrize("name", ["keys.txt", "missing.pdf"])
def test_a_passage_without_a_pdf_file_has_no_page(client: TestClient, folder: Path, name: str) -> None:
    for view in ("pages", "page.png?page=2"):
        response = client.get(f"/passages/{passage_id(folder, name)}/{view}")
        assert response.status_code == 404
        assert str(folder) not in response.text


def test_only_the_pages_of_the_passage_in_its_unchanged_file_are_shown(client: TestClient, folder: Path) -> None:
    identifier = passage_id(folder, "replaced.pdf", "Locks are changed every month.")
    assert client.get(f"/passages/{identifier}/pages").status_code == 404
    assert client.get(f"/passages/{identifier}/page.png", params={"page": 2}).status_code == 404
    identifier = passage_id(folder, "keys.pdf")
    for page in (0, 1, 3):
        assert client.get(f"/passages/{identifier}/page.png", params={"page": page}).status_code == 404
    for view in ("context", "pages", "page.png"):
        assert client.get(f"/passages/no-such-passage/{view}", params={"page": 2}).status_code == 404
        other = {"page": "2", "collection": "other"}
        assert client.get(f"/passages/{identifier}/{view}", params=other).status_code == 404
