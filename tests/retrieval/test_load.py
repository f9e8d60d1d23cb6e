"""Loading: which files are read, which are skipped and why; one bad file never stops the others."""

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from pypdf import PdfWriter

from antiphon.retrieval import (
    HashEmbedder,
    Passage,
    SkippedFile,
    build_index,
    index_passages,
    load_documents,
    read_index,
)
from antiphon.retrieval.formats import ocr
from antiphon.retrieval.vector_index.flat import Vectors
from tests.retrieval.pdf_files import lines, pages_of, shown
from tests.retrieval.sample_files import read_document


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def pdf(*pages: str, title: str = "", password: str = "") -> bytes:
    """A PDF with one line on each page."""
    data = pages_of(*(shown(lines(text)) for text in pages))
    if not title and not password:
        return data
    writer, out = PdfWriter(clone_from=io.BytesIO(data)), io.BytesIO()
    writer.add_metadata({"/Title": title})
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    writer.write(out)
    return out.getvalue()


@pytest.mark.parametrize("suffix", [".txt", ".md", ""])
@pytest.mark.parametrize("text", ["One.\r\nTwo.\r\n", "Ümläut, 漢字 and 🙂.\n\tTab."])
def test_text_formats_keep_every_character_of_the_file(tmp_path: Path, suffix: str, text: str) -> None:
    path = write(tmp_path / f"file{suffix}", text)
    assert read_document(path).text == path.read_bytes().decode()


def test_markdown_headings_are_found_but_not_in_code(tmp_path: Path) -> None:
    text = "# One #\nword\n\n```sh\n# no heading\n```\n\nTwo\n---\nword\n\n- item\n---\n### Three\nend\n"
    document = read_document(write(tmp_path / "a.md", text))
    assert [(h.level, h.title) for h in document.headings] == [(1, "One"), (2, "Two"), (3, "Three")]
    assert [document.text[h.start : h.end] for h in document.headings] == ["# One #", "Two\n---", "### Three"]


def test_titles_in_plain_text_are_single_lines_that_end_no_sentence(tmp_path: Path) -> None:
    text = "The Guide\n\nHow to begin?\n\nBegin here.\n\nNote: nothing.\n\nx = 5\n\nA long way\nhome\n\nEnd"
    document = read_document(write(tmp_path / "a.txt", text))
    assert [(h.level, h.title) for h in document.headings] == [(1, "The Guide"), (2, "How to begin?")]


def test_underlined_titles_in_plain_text_have_levels_by_their_underline(tmp_path: Path) -> None:
    text = (
        "TRIGGERS\n========\n\nIntroduction\n------------\n\nA trigger is one.\n\nHow to begin\n\nBegin.\n\n"
        '==================\n\n\tMajor changes of "less" in 581\n\n* One\n\nOne\ntwo\n---\n\nName  Size\n----  ----\n'
    )
    document = read_document(write(tmp_path / "a.txt", text))
    assert [(h.level, h.title) for h in document.headings] == [
        (1, "TRIGGERS"),
        (2, "Introduction"),
        (4, "How to begin"),
        (3, 'Major changes of "less" in 581'),
    ]


def test_pdf_gives_text_pages_and_title(tmp_path: Path) -> None:
    document = read_document(write(tmp_path / "a.pdf", pdf("Page one.", "Page two.", title="Report")))
    assert document.text == "Page one.\n\nPage two."
    assert document.metadata == {"title": "Report"}
    assert [document.page(document.text.index(word)) for word in ("one", "two")] == [1, 2]


def test_folders_are_read_in_sorted_order_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.md", "a/y.txt", ".hidden.txt", ".git/c.txt", "a/.d/e.txt"):
        write(tmp_path / name, name)
    loaded = load_documents([tmp_path])
    assert [document.text for document in loaded.documents] == ["a/y.txt", "a/z.md", "b.txt"]
    assert loaded.skipped == ()


def test_a_file_is_read_once_however_often_it_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "text")
    assert len(load_documents([path, tmp_path, tmp_path / ".." / tmp_path.name / "a.txt"]).documents) == 1


def test_sources_are_the_paths_as_they_were_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "docs" / "a.txt", "text")
    monkeypatch.chdir(tmp_path)
    assert [document.source for document in load_documents(["docs"]).documents] == [str(Path("docs", "a.txt"))]


BAD = {
    "binary.txt": (b"\x00\xff\x00\x01", "it is binary (byte 1)"),
    "zero.txt": (b"text \x00 text", "it is binary (a zero character at 5)"),
    "noise.txt": (b"\x01\x02\x03\xfe\x07 text", "it is binary (byte 3)"),
    "torn.txt": (b"\xff\xfea\x00b", "it is not UTF-16-LE text (byte 2)"),
    "odd.html": (b"<div>" * 30_000, "it opens 30000 elements more than it closes"),
    "empty.txt": (b"", "it is empty"),
    "blank.md": (b"\xef\xbb\xbf \r\n\t", "it is empty"),
    "blank.html": (b"<html><script>x</script></html>", "it is empty"),
    "scan.pdf": (pdf(""), "it holds no text (scanned pages need OCR first)"),
    "secret.pdf": (pdf("text", password="x"), "it is encrypted with a password"),
    "torn.pdf": (pdf("text")[:200], "it is not a readable PDF"),
    "fake.pdf": (b"no pdf at all", "it is not a readable PDF"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_skipped_and_named_with_its_reason(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ocr, "is_installed", lambda: False)
    content, reason = BAD[name]
    path = write(tmp_path / name, content)
    write(tmp_path / "good.txt", "good")
    loaded = load_documents([tmp_path])
    assert [document.text for document in loaded.documents] == ["good"]
    assert [skipped.path for skipped in loaded.skipped] == [str(path)]
    assert loaded.skipped[0].reason.startswith(reason)


@pytest.mark.skipif(sys.platform == "win32", reason="no links and pipes without rights")
def test_broken_links_and_pipes_are_skipped(tmp_path: Path) -> None:
    write(tmp_path / "good.txt", "good")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.txt")
    loaded = load_documents([tmp_path])
    reasons = {Path(skipped.path).name: skipped.reason for skipped in loaded.skipped}
    assert reasons == {"gone.txt": "No such file or directory", "pipe.txt": "it is not a regular file"}


def test_a_missing_path_is_an_error_even_among_existing_ones(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "text")
    with pytest.raises(FileNotFoundError, match=r"gone does not exist; give the path of a file or a folder\."):
        load_documents([tmp_path, tmp_path / "gone"])


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no file; give a file or a folder with"):
        load_documents([tmp_path])


def test_no_readable_file_is_an_error_that_names_the_first(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", b"")
    with pytest.raises(ValueError, match=r"can be read: 1 skipped, the first is .*a\.txt: it is empty\."):
        load_documents([tmp_path])


OUTSIDE = "it is a link to a {} outside of what is indexed; to read it, follow links or name it"


class Unused(HashEmbedder):
    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        raise AssertionError("nothing is to be embedded")


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "good.txt").write_text("good")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("secret")
    return tmp_path / "docs"


def reasons(docs: Path) -> dict[str, str]:
    return {os.path.relpath(skipped.path, docs): skipped.reason for skipped in load_documents([docs]).skipped}


@pytest.mark.skipif(sys.platform == "win32", reason="links and names of POSIX")
def test_links_that_lead_to_themselves_are_skipped(docs: Path) -> None:
    (docs / "self.txt").symlink_to(docs / "self.txt")
    (docs / "one.txt").symlink_to(docs / "two.txt")
    (docs / "two.txt").symlink_to(docs / "one.txt")
    assert reasons(docs) == dict.fromkeys(["self.txt", "one.txt", "two.txt"], "Too many levels of symbolic links")
    with pytest.raises(ValueError, match=r"1 skipped, the first is .*self\.txt: Too many levels of symbolic links"):
        load_documents([docs / "self.txt"])


@pytest.mark.skipif(sys.platform == "win32", reason="links and names of POSIX")
def test_links_that_lead_out_are_followed_on_request(docs: Path) -> None:
    outside = docs.parent / "outside"
    (docs / "file.txt").symlink_to(outside / "secret.txt")
    (docs / "folder").symlink_to(outside)
    (docs / "inside.txt").symlink_to(docs / "good.txt")
    loaded = load_documents([docs])
    assert [document.text for document in loaded.documents] == ["good"]
    assert reasons(docs) == {"file.txt": OUTSIDE.format("file"), "folder": OUTSIDE.format("folder")}
    followed = load_documents([docs], follow_links=True)
    assert sorted(document.text for document in followed.documents) == ["good", "secret"]
    assert followed.skipped == ()


@pytest.mark.skipif(sys.platform == "win32", reason="links and names of POSIX")
def test_a_link_is_followed_if_it_or_its_target_is_named(docs: Path) -> None:
    (docs / "file.txt").symlink_to(docs.parent / "outside" / "secret.txt")
    assert [document.text for document in load_documents([docs / "file.txt"]).documents] == ["secret"]
    both = load_documents([docs, docs.parent / "outside"])
    assert (sorted(document.text for document in both.documents), both.skipped) == (["good", "secret"], ())


@pytest.mark.skipif(sys.platform == "win32", reason="links and names of POSIX")
def test_following_links_between_folders_terminates(docs: Path) -> None:
    (docs / "loop").symlink_to(docs)
    (docs / "deep").mkdir()
    (docs / "deep" / "up").symlink_to(docs.parent)
    followed = load_documents([docs], follow_links=True)
    assert sorted(document.text for document in followed.documents) == ["good", "secret"]


@pytest.mark.skipif(sys.platform == "win32", reason="links and names of POSIX")
def test_a_name_that_is_not_utf_8_is_skipped_before_anything_is_embedded(docs: Path) -> None:
    path = docs / os.fsdecode(b"caf\xe9.txt")
    try:
        path.write_text("coffee")
    except OSError:
        pytest.skip("this file system has no such names")
    report = build_index([docs], docs.parent / "index", embedder="hash")
    assert report.skipped == (SkippedFile(str(path), "its name is not UTF-8; rename it"),)
    assert [passage.text for passage in read_index(docs.parent / "index").passages] == ["good"]
    with pytest.raises(ValueError, match="its name is not UTF-8"):
        load_documents([str(path)])


@pytest.mark.skipif(sys.platform == "win32", reason="links and names of POSIX")
@pytest.mark.parametrize("field", ["text", "id", "source", "metadata"])
def test_passages_that_utf_8_cannot_encode_are_refused_before_embedding(tmp_path: Path, field: str) -> None:
    values = {"text": "a", "id": "b", "source": "c", "start": 0, "end": 1}
    values |= {"metadata": {"title": "\udc80"}} if field == "metadata" else {field: "x\udc80"}
    with pytest.raises(ValueError, match=rf"holds half a character \(a lone surrogate\) in its {field}"):
        index_passages([Passage(**values)], tmp_path / "index", Unused())  # type: ignore[arg-type]
    assert not (tmp_path / "index").exists()
