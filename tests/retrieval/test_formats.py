"""Formats: the text and the places of passages, and that damaged and hostile files are skipped with a reason."""

import time
import zlib
from email.message import EmailMessage
from pathlib import Path

import pytest

from antiphon.retrieval import Passage, chunk_document, load_documents, read_documents
from antiphon.retrieval.formats.mail import read_mail_document
from tests.retrieval.sample_files import (
    DAMAGED,
    HOSTILE,
    NESTED_ZIP,
    SAMPLES,
    docx,
    eml,
    read_document,
    xlsx,
    zipped,
)
from tests.table_part import part

pytestmark = pytest.mark.slow


def passages(path: Path, max_tokens: int = 24) -> list[Passage]:
    """Cut the documents of a file into passages of few words, so that each place has its own."""
    return [
        passage
        for document in read_documents(path).documents
        for passage in chunk_document(document, lambda text: len(text.split()), max_tokens=max_tokens)
    ]


def saved(folder: Path, name: str, content: bytes | None = None) -> Path:
    path = folder / name
    path.write_bytes(SAMPLES[name]() if content is None else content)
    return path


TEXTS = {
    "a.docx": ["Travel rules", "A night costs at most 120 euros.", "Breakfast is included.", "| Rome | 140 |"],
    "a.pptx": ["Goals", "Grow by ten percent", "Notes: Mention the second supplier.", "In a group", "| Screw | 14 |"],
    "a.xlsx": ["All amounts in euros", "| Item | Amount |", "| Desk 1 | 201 |", "| Desk 0 | 100.5 |", "| Ann | 12 |"],
    "a.csv": ["| City | Population |", "| City 2 | 1002 |", "| New; York | 8000000 |"],
    "a.tsv": ["| City | Population |", "| Rome | 2800000 |"],
    "a.epub": ["The ship leaves at dawn.", "They reach the harbour."],
    "a.eml": ["Grüße aus Köln", "From: Jörg Maß <jm@example.org>", "The key is under the mat.", "| City 0 | 1000 |"],
    "a.mbox": ["The key is under the mat.", "The second message.\nFrom here on it is quoted.", "| City 0 | 1000 |"],
    "a.ipynb": ["We load the data.", "```python\nprint(mean(data))\n```", "The mean is 42", "It is large."],
    "a.json": ["shop: Corner", "name: Item 3\ntags: red, new\nnote: word word", "price: null"],
    "a.jsonl": ["question: Why?\nanswer: Because.", "question: When?\nanswer: Now."],
    "a.py": ["import math", "    def area(self, r: float) -> float:", "        return x * r**2", "UNIT = Circle()"],
    "a.go": ["package main", "func Add(a, b int) int {\n\treturn a + b\n}"],
    "a.zip": ["| City 0 | 1000 |", "A night costs at most 120 euros."],
}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_text_of_each_format_is_complete(tmp_path: Path, name: str) -> None:
    text = "\n\n".join(document.text for document in read_documents(saved(tmp_path, name)).documents)
    assert [piece for piece in TEXTS[name] if piece not in text] == []
    assert "<Figure>" not in text or "iVBOR" not in text


PLACES = {
    "a.docx": ("First class is allowed", "", "Travel rules > Trains", ""),
    "a.pptx": ("Mention the second", "slide 2", "Risks", ""),
    "a.xlsx": ("| Ann | 12 |", "sheet Sheet 1, cells A1:B2", "Sheet 1", ""),
    "a.csv": ("New; York", "rows 4-5", None, ""),
    "a.epub": ("reach the harbour", "", "Arrival", ""),
    "a.eml": ("under the mat", "", "Grüße aus Köln", ""),
    "a.mbox": ("The second message", "", "Second", "/2.eml"),
    "a.ipynb": ("It is large", "cell 3", "Analysis > Result", ""),
    "a.json": ("Item 3", "record items[3]", None, ""),
    "a.jsonl": ("When?", "lines 1-3", None, ""),
    "a.py": ("return x * r**2", "lines 9-13", "Circle > area", ""),
    "a.go": ("func Add", "lines 1-6", None, ""),
    "a.zip": ("| Rome | 140 |", "", "Travel rules > Hotels", "/docs/b.docx"),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_passage_says_where_in_the_file_it_is(tmp_path: Path, name: str) -> None:
    words, location, title, inside = PLACES[name]
    path = saved(tmp_path, name)
    [found] = [passage for passage in passages(path) if words in passage.text]
    assert (found.location, found.metadata.get("title"), found.source) == (location, title, f"{path}{inside}")


def test_a_long_table_is_cut_between_rows_and_each_part_names_its_cells(tmp_path: Path) -> None:
    found = [each for each in passages(saved(tmp_path, "a.xlsx", xlsx(rows=40))) if each.metadata["sheet"] == "Costs"]
    assert len(found) > 3
    for passage in found:
        begin, end = (int(cell[1:]) for cell in passage.metadata["cells"].split(":"))
        numbers = [int(line.split()[2]) for line in passage.text.splitlines() if "Desk" in line]
        if not numbers:
            assert "All amounts" in passage.text
            continue
        assert all(begin <= 5 + number <= end for number in numbers)
        assert 5 + numbers[-1] == end


def test_headers_of_a_message_are_decoded_into_metadata(tmp_path: Path) -> None:
    assert read_document(saved(tmp_path, "a.eml")).metadata == {
        "title": "Grüße aus Köln",
        "from": "Jörg Maß <jm@example.org>",
        "to": "ann@example.org",
        "date": "2023-01-02T10:00:00+01:00",
    }


@pytest.mark.parametrize("header", [b"=?iso-8859-1?q?Gr=FC=DFe?=\n an =?utf-8?b?w7ZzdGU=?=", "Grüße an öste".encode()])
def test_headers_are_decoded_as_encoded_words_or_as_utf8(tmp_path: Path, header: bytes) -> None:
    document = read_document(saved(tmp_path, "a.eml", b"Subject: " + header + b"\n\ntext\n"))
    assert document.metadata["title"] == "Grüße an öste"


def test_a_message_of_html_only_is_read_as_a_page(tmp_path: Path) -> None:
    content = b"Subject: x\nContent-Type: text/html; charset=iso-8859-1\n\n<p>Gr\xfc\xdfe</p><script>1</script>"
    assert read_document(saved(tmp_path, "a.eml", content)).text == "x\n\nGrüße"


def test_attachments_are_read_by_their_format_and_named_by_their_message(tmp_path: Path) -> None:
    documents = read_documents(saved(tmp_path, "a.eml")).documents
    assert [document.source.removeprefix(str(tmp_path)) for document in documents] == ["/a.eml", "/a.eml/Größen.csv"]
    loaded = read_documents(saved(tmp_path, "a.eml", eml(b"\x7fELF\xff\0\1\2" * 9)))
    assert [(Path(each.path).name, each.reason[:12]) for each in loaded.skipped] == [("Größen.csv", "it is binary")]


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_skipped_with_its_reason_and_the_others_are_read(tmp_path: Path, name: str) -> None:
    content, reason = DAMAGED[name]
    _check_skipped(tmp_path, name, content(), reason)


SLOW = ("sparse.xlsx", "sheets.xlsx", "many.zip", "deep.docx")


@pytest.mark.parametrize("name", part(HOSTILE, [name for name in HOSTILE if name not in SLOW]))
def test_a_hostile_file_is_skipped_with_its_reason_and_the_others_are_read(tmp_path: Path, name: str) -> None:
    content, reason = HOSTILE[name]
    data, start = content(), time.process_time()
    _check_skipped(tmp_path, name, data, reason)
    assert time.process_time() - start < 30


def _check_skipped(folder: Path, name: str, content: bytes, reason: str) -> None:
    path = saved(folder, name, content)
    saved(folder, "good.txt", b"good")
    for paths in ([folder], [path, folder / "good.txt"]):
        loaded = load_documents(paths)
        assert [document.text for document in loaded.documents] == ["good"]
        assert [each.path for each in loaded.skipped] == [str(path)]
        assert loaded.skipped[0].reason.startswith(reason)


def test_files_in_an_archive_that_are_not_read_are_named(tmp_path: Path) -> None:
    loaded = read_documents(saved(tmp_path, "a.zip"))
    reasons = {each.path.removeprefix(f"{tmp_path}/a.zip/"): each.reason for each in loaded.skipped}
    assert reasons.pop("bad.xlsx").startswith("it is not an Excel workbook")
    assert reasons == {"c.bin": ".bin files are not read"}


def test_a_damaged_file_in_an_archive_does_not_cost_the_others(tmp_path: Path) -> None:
    crc = zlib.crc32(b"first").to_bytes(4, "little")
    loaded = read_documents(
        saved(tmp_path, "a.zip", zipped({"1.txt": "first", "2.txt": "second"}).replace(crc, b"0000"))
    )
    assert [document.text for document in loaded.documents] == ["second"]
    assert [each.reason[:25] for each in loaded.skipped] == ["'1.txt' in it is damaged "]


def test_archives_in_archives_are_read_up_to_a_limit(tmp_path: Path) -> None:
    inside = "/inner.zip" * 3
    [document] = read_documents(saved(tmp_path, "a.zip", NESTED_ZIP(3))).documents
    assert (document.text, document.source) == ("The innermost file.", f"{tmp_path}/a.zip{inside}/end.txt")
    with pytest.raises(ValueError, match="it is nested in more than 4 other files"):
        read_documents(saved(tmp_path, "a.zip", NESTED_ZIP(9)))


def test_an_archive_cannot_name_files_outside_of_it(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    loaded = read_documents(saved(tmp_path, "a.zip", zipped({"../secret.txt": "inside", "/etc/passwd": "x"})))
    assert [document.text for document in loaded.documents] == ["inside", "x"]


@pytest.mark.parametrize(("name", "content"), [("report", docx()), ("data.unknown", xlsx())])
def test_a_named_file_is_read_by_its_format_even_without_its_ending(tmp_path: Path, name: str, content: bytes) -> None:
    assert read_document(saved(tmp_path, name, content)).text.startswith(("Travel rules", "Costs"))


def test_text_files_with_unknown_endings_are_recognised_by_their_content(tmp_path: Path) -> None:
    saved(tmp_path, "README.FHS", b"Where files belong.")
    saved(tmp_path, "GFDL-1.3", b"A licence.")
    saved(tmp_path, "core.1234", b"\x7fELF\0\0\0\1" * 99)
    saved(tmp_path, "run.log", b"12:00 started")
    loaded = load_documents([tmp_path])
    assert [document.text for document in loaded.documents] == ["A licence.", "Where files belong."]
    assert [each.reason for each in loaded.skipped] == [".1234 files are not read", ".log files are not read"]


HTML = "<p>The heating did not work – the staff could give us only four blankets, and the lift was broken.</p>"


def mail(plain: str, html: str) -> bytes:
    message = EmailMessage()
    message["Subject"], message["From"] = "Crossing", "a@example.org"
    message.set_content(plain)
    message.add_alternative(html, subtype="html")
    return bytes(message)


@pytest.mark.parametrize("remark", ["Please view this message as HTML.", "\n"])
def test_html_is_read_if_the_plain_text_is_only_a_remark(remark: str) -> None:
    text = read_mail_document(mail(remark, HTML), "a.eml").text
    assert "heating did not work – the staff" in text, "in the charset of the part's header"
    assert "view this message" not in text


def test_plain_text_is_read_if_it_says_as_much_as_the_html() -> None:
    text = read_mail_document(
        mail("The heating did not work, and the lift was out of order all day.", HTML), "a.eml"
    ).text
    assert "out of order" in text
    assert "blankets" not in text
