"""Files of each format that tests write: readable ones, damaged ones, and hostile ones."""

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from email.message import EmailMessage
from functools import partial
from pathlib import Path

from antiphon.retrieval import Document, read_documents

BOMB_BYTES = 40 * 1024 * 1024
_ENTITIES = (
    '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY {name} "{f"&{before};" * 10}">' for before, name in zip("abcdefgh", "bcdefghi", strict=True))
    + "]>"
)


def read_document(path: str | Path) -> Document:
    """Return the document of a file, of a message without its attachments."""
    return read_documents(path).documents[0]


def zipped(files: Mapping[str, str | bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def changed_zip(data: bytes, changes: Mapping[str, Callable[[bytes], bytes]]) -> bytes:
    """Return the archive with some files changed; a file that does not exist is added."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files: dict[str, str | bytes] = {name: archive.read(name) for name in archive.namelist()}
    for name, change in changes.items():
        old = files.get(name, b"")
        files[name] = change(old if isinstance(old, bytes) else old.encode())
    return zipped(files)


def docx() -> bytes:
    from docx import Document

    document = Document()
    document.add_heading("Travel rules", 0)
    document.add_heading("Hotels", 1)
    document.add_paragraph("A night costs at most 120 euros.")
    document.add_paragraph("Breakfast is included.", style="List Bullet")
    table = document.add_table(3, 2)
    for row, (city, limit) in enumerate([("City", "Limit"), ("Rome", "140"), ("Oslo", "")]):
        table.cell(row, 0).text, table.cell(row, 1).text = city, limit
    document.add_heading("Trains", 1)
    document.add_paragraph("First class is allowed from four hours on.")
    return _saved(document)


def pptx() -> bytes:
    from pptx import Presentation
    from pptx.util import Inches

    presentation = Presentation()
    for title, body in (("Goals", "Grow by ten percent"), ("Risks", "The supplier may fail")):
        slide = presentation.slides.add_slide(presentation.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = body
    slide.notes_slide.notes_text_frame.text = "Mention the second supplier."
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, Inches(1), Inches(1)).text_frame.text = "In a group"
    table = slide.shapes.add_table(2, 2, 0, 0, Inches(2), Inches(1)).table
    for column, (head, value) in enumerate([("Part", "Screw"), ("Days", "14")]):
        table.cell(0, column).text, table.cell(1, column).text = head, value
    return _saved(presentation)


def xlsx(rows: int = 3, sheets: int = 2) -> bytes:
    from openpyxl import Workbook

    workbook = Workbook()
    costs = workbook.active
    costs.title = "Costs"
    costs["B2"] = "All amounts in euros"
    costs["B4"], costs["C4"] = "Item", "Amount"
    for number in range(rows):
        costs.cell(5 + number, 2, f"Desk {number}")
        costs.cell(5 + number, 3, 100.5 * (number + 1))
    for number in range(1, sheets):
        workbook.create_sheet(f"Sheet {number}").append(["Person", "Room"])
    workbook.worksheets[-1].append(["Ann", 12])
    return _saved(workbook)


def csv(rows: int = 3) -> bytes:
    lines = ["City;Population", *(f"City {number};{1000 + number}" for number in range(rows)), '"New; York";8000000']
    return "\n".join(lines).encode()


def tsv() -> bytes:
    return b"City\tPopulation\nRome\t2800000\n"


def epub(chapter: str = "<p>The ship leaves at dawn.</p>") -> bytes:
    namespace = 'xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/"'
    container = '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    items = ('id="one" href="one%201.xhtml"', 'id="two" href="two.xhtml"')
    page = "<html xmlns='http://www.w3.org/1999/xhtml'><body><h1>{}</h1>{}</body></html>"
    return zipped(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": container + '<rootfile full-path="OPS/book.opf"/></rootfiles></container>',
            "OPS/book.opf": f"<package {namespace}><metadata><dc:title>The Journey</dc:title><dc:creator>A. Writer"
            "</dc:creator></metadata><manifest>"
            + "".join(f'<item {item} media-type="application/xhtml+xml"/>' for item in items)
            + '</manifest><spine><itemref idref="two"/><itemref idref="one"/></spine></package>',
            "OPS/one 1.xhtml": page.format("Arrival", "<p>They reach the harbour.</p>"),
            "OPS/two.xhtml": page.format("Departure", chapter),
        }
    )


def eml(attachment: bytes | None = None) -> bytes:
    message = EmailMessage()
    message["Subject"] = "Grüße aus Köln"
    message["From"] = "Jörg Maß <jm@example.org>"
    message["To"] = "ann@example.org"
    message["Date"] = "Mon, 02 Jan 2023 10:00:00 +0100"
    message.set_content("The key is under the mat.\n")
    message.add_alternative("<p>The key is under the mat.</p>", subtype="html")
    if attachment is not None:
        message.add_attachment(attachment, maintype="application", subtype="octet-stream", filename="Größen.csv")
    return message.as_bytes()


def mbox() -> bytes:
    second = b"From: bob@example.org\nSubject: Second\n\nThe second message.\n>From here on it is quoted.\n"
    return b"From a@example.org Mon Jan  2 10:00:00 2023\n" + eml(csv()) + b"\n\nFrom b@x Tue Jan  3\n" + second


def ipynb() -> bytes:
    picture = {"output_type": "display_data", "data": {"image/png": "iVBORw0KGgo" * 50, "text/plain": ["<Figure>"]}}
    printed = {"output_type": "stream", "name": "stdout", "text": ["The mean is 42\n"]}
    cells = [
        {"cell_type": "markdown", "source": ["# Analysis\n", "\n", "We load the data."]},
        {"cell_type": "code", "source": "print(mean(data))", "outputs": [printed, picture]},
        {"cell_type": "markdown", "source": "## Result\n\nIt is large."},
    ]
    metadata = {"language_info": {"name": "python"}}
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}).encode()


def json_file() -> bytes:
    items = [{"name": f"Item {n}", "tags": ["red", "new"], "note": "word " * 40, "price": None} for n in range(6)]
    return json.dumps({"shop": "Corner", "items": items}).encode()


def jsonl() -> bytes:
    return b'{"question": "Why?", "answer": "Because."}\n\n{"question": "When?", "answer": "Now."}\n'


def python() -> bytes:
    return (
        b'"""Shapes."""\n\nimport math\n\n\nclass Circle:\n    """A circle."""\n\n'
        b"    def area(self, r: float) -> float:\n"
        b'        """Return the area."""\n        x = math.pi\n\n        return x * r**2\n\n\nUNIT = Circle()\n'
    )


def go() -> bytes:
    return b"package main\n\n// Add returns the sum.\nfunc Add(a, b int) int {\n\treturn a + b\n}\n"


def archive() -> bytes:
    return zipped({"docs/a.csv": csv(), "docs/b.docx": docx(), "c.bin": b"\0", ".hidden.txt": "no", "bad.xlsx": b"PK"})


Maker = Callable[[], bytes]

SAMPLES: dict[str, Maker] = {
    "a.docx": docx,
    "a.pptx": pptx,
    "a.xlsx": xlsx,
    "a.csv": csv,
    "a.tsv": tsv,
    "a.epub": epub,
    "a.eml": lambda: eml(csv()),
    "a.mbox": mbox,
    "a.ipynb": ipynb,
    "a.json": json_file,
    "a.jsonl": jsonl,
    "a.py": python,
    "a.go": go,
    "a.zip": archive,
}


def _bomb(name: str) -> bytes:
    return changed_zip(SAMPLES[name](), {"big.xml": lambda _: b"\0" * BOMB_BYTES})


def _entities(name: str, part: str) -> bytes:
    return changed_zip(SAMPLES[name](), {part: lambda old: _ENTITIES.encode() + old.partition(b"?>")[2] + b"&i;"})


def _nested_eml(depth: int) -> bytes:
    head = b"Subject: deep\nMIME-Version: 1.0\n"
    parts = [b'Content-Type: multipart/mixed; boundary="b%d"\n\n--b%d\n' % (n, n) for n in range(depth)]
    return head + b"".join(parts) + b"Content-Type: text/plain\n\nend\n"


def _nested_zip(depth: int) -> bytes:
    data = zipped({"end.txt": "The innermost file."})
    for _ in range(depth):
        data = zipped({"inner.zip": data})
    return data


def _deep_word(depth: int) -> bytes:
    table = b"<w:tbl><w:tr><w:tc>"
    end = b"</w:tc></w:tr></w:tbl>"
    deep = table * depth + b"<w:p/>" + end * depth
    return changed_zip(docx(), {"word/document.xml": lambda old: old.replace(b"<w:body>", b"<w:body>" + deep)})


def _sparse_xlsx() -> bytes:
    far = "".join(f'<row r="{n}"><c r="XFD{n}"><v>1</v></c></row>' for n in range(100, 500))
    cell = f"{far}</sheetData>".encode()
    sheets = [f"xl/worksheets/sheet{number}.xml" for number in (1, 2)]
    return changed_zip(xlsx(), {sheet: lambda old: old.replace(b"</sheetData>", cell) for sheet in sheets})


def _many_sheets(count: int) -> bytes:
    sheet = '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"/>'
    return changed_zip(xlsx(), {f"xl/worksheets/sheet{n}.xml": lambda _: sheet.encode() for n in range(9, count)})


def drm_epub() -> bytes:
    locked = b'<encryption><e><CipherReference URI="OPS/two.xhtml"/></e></encryption>'
    return changed_zip(epub(), {"META-INF/encryption.xml": lambda _: locked})


DAMAGED: dict[str, tuple[Maker, str]] = {
    "cut.docx": (lambda: docx()[:5000], "it is not a Word document"),
    "torn.docx": (
        lambda: changed_zip(docx(), {"word/document.xml": lambda old: old[: len(old) // 2]}),
        "it is not a readable Word document",
    ),
    "cut.xlsx": (lambda: xlsx()[:900], "it is not an Excel workbook"),
    "locked.xlsx": (
        lambda: b"\xd0\xcf\x11\xe0" + "EncryptedPackage".encode("utf-16-le"),
        "it is encrypted with a password",
    ),
    "torn.epub": (
        lambda: changed_zip(epub(), {"OPS/book.opf": lambda old: old[:80]}),
        "'OPS/book.opf' in it is not readable",
    ),
    "empty.eml": (
        lambda: b"\n\nno header at all\n",
        "it is not an e-mail (it has no header such as From, Date or Subject)",
    ),
    "no.mbox": (lambda: b"Subject: x\n\ntext\n", "it is not a mailbox (it does not begin with a From line)"),
    "cut.ipynb": (lambda: ipynb()[:200], "it is not JSON"),
    "other.ipynb": (lambda: b'{"a": 1}', "it is not a notebook (it has no cells)"),
    "cut.zip": (lambda: archive()[:500], "it is not a ZIP archive"),
    "torn.zip": (lambda: archive().replace(b"PK\x01\x02", b"PK\x09\x09", 1), "it is not a ZIP archive"),
    "old.doc": (lambda: b"\xd0\xcf\x11\xe0" + b"\0" * 99, ".doc files are not read; save it as .docx"),
}
"""Damaged files, with the beginning of the reason why each is skipped."""

HOSTILE: dict[str, tuple[Maker, str]] = {
    **{
        f"bomb.{end}": (partial(_bomb, f"a.{end}"), "'big.xml' in it is compressed")
        for end in ("docx", "pptx", "xlsx", "epub")
    },
    "bomb.zip": (lambda: _bomb("a.zip"), "'big.xml' in it is compressed"),
    "entities.docx": (
        lambda: _entities("a.docx", "word/document.xml"),
        "'word/document.xml' in it declares XML entities",
    ),
    "entities.pptx": (
        lambda: _entities("a.pptx", "ppt/slides/slide1.xml"),
        "'ppt/slides/slide1.xml' in it declares XML",
    ),
    "entities.xlsx": (lambda: _entities("a.xlsx", "xl/sharedStrings.xml"), "'xl/sharedStrings.xml' in it declares XML"),
    "entities.epub": (lambda: _entities("a.epub", "OPS/book.opf"), "'OPS/book.opf' in it declares XML entities"),
    "sheets.xlsx": (lambda: _many_sheets(10_000), "it has 9,993 sheets; at most 1,000 are read"),
    "sparse.xlsx": (lambda: _sparse_xlsx(), "it has more than 5,000,000 cells or 2,000,000 rows"),
    "deep.docx": (lambda: _deep_word(3000), "it is nested too deeply"),
    "deep.eml": (lambda: _nested_eml(3000), "its parts are nested too deeply"),
    "deep.json": (lambda: b"[" * 100_000, "it is nested too deeply"),
    "deep.ipynb": (lambda: b'{"cells":' * 100_000, "it is nested too deeply"),
    "many.zip": (
        lambda: zipped({f"{n}.txt": "" for n in range(20_001)}),
        "it contains 20,001 files; at most 20,000 are read",
    ),
}
"""Hostile files, with the beginning of the reason why each is skipped."""

NESTED_ZIP = _nested_zip


def _saved(document: object) -> bytes:
    out = io.BytesIO()
    document.save(out)  # type: ignore[attr-defined]
    return out.getvalue()
