"""Speed of reading documents: MB/s of each format, and of its parsing library alone.

python -m benchmarks.reading
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator
from email import message_from_bytes
from typing import Any

import typer

from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import AsJson
from antiphon.pipelines.rendering.tables import result_table
from antiphon.retrieval.formats import PLAIN_TEXT, format_of
from benchmarks.program import program

COLUMNS = {name: name for name in ("format", "MB", "MB/s", "library", "library MB/s")}
_SENTENCE = "The valve of pump {n} is opened slowly, because pressure would otherwise rise in pipe {n} of the hall. "
_REPEATS = 3

Parse = Callable[[bytes], Any]


def _paragraphs(count: int) -> Iterator[str]:
    return ("".join(_SENTENCE.format(n=number) for _ in range(4)) for number in range(count))


def _markdown() -> bytes:
    return "\n\n".join(f"## Part {n}\n\n{text}" for n, text in enumerate(_paragraphs(3000))).encode()


def _html() -> bytes:
    body = "".join(f"<h2>Part {n}</h2><p>{text}</p>" for n, text in enumerate(_paragraphs(3000)))
    return f"<!doctype html><html><body>{body}</body></html>".encode()


def _csv() -> bytes:
    return ("name,amount,place\n" + "".join(f"pump {n},{n * 3},hall {n % 9}\n" for n in range(40_000))).encode()


def _mail() -> bytes:
    return b"From: a@example.org\nSubject: Pumps\n\n" + "\n\n".join(_paragraphs(3000)).encode()


def _excel() -> bytes:
    from openpyxl import Workbook

    book, out = Workbook(write_only=True), io.BytesIO()
    sheet = book.create_sheet("Pumps")
    for n in range(20_000):
        sheet.append([f"pump {n}", n * 3, f"hall {n % 9}"])
    book.save(out)
    return out.getvalue()


def _word() -> bytes:
    from docx import Document

    document, out = Document(), io.BytesIO()
    for text in _paragraphs(1500):
        document.add_paragraph(text)
    document.save(out)
    return out.getvalue()


def _pdf() -> bytes:
    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.figure import Figure

    out = io.BytesIO()
    with PdfPages(out) as pages:
        for _ in range(30):
            figure = Figure(figsize=(8.3, 11.7))
            for row, text in enumerate(_paragraphs(40)):
                figure.text(0.05, 0.95 - 0.022 * row, text[:110], fontsize=8)
            pages.savefig(figure)
    return out.getvalue()


def _selectolax(data: bytes) -> Any:
    from selectolax.lexbor import LexborHTMLParser

    return LexborHTMLParser(data).text()


def _markdown_it(data: bytes) -> Any:
    from markdown_it import MarkdownIt

    return MarkdownIt("gfm-like", {"linkify": False}).parse(data.decode())


def _openpyxl(data: bytes) -> Any:
    from openpyxl import load_workbook

    book = load_workbook(io.BytesIO(data), read_only=True, data_only=True)
    return [row for sheet in book.worksheets for row in sheet.iter_rows(values_only=True)]


def _mammoth(data: bytes) -> Any:
    import mammoth

    return mammoth.convert_to_html(io.BytesIO(data))


def _pdfium(data: bytes) -> Any:
    from pypdfium2 import PdfDocument

    return [page.get_textpage().get_text_range() for page in PdfDocument(data)]


def _csv_module(data: bytes) -> Any:
    import csv

    return list(csv.reader(io.StringIO(data.decode())))


_FORMATS: dict[str, tuple[Callable[[], bytes], str, Parse]] = {
    ".md": (_markdown, "markdown-it-py", _markdown_it),
    ".html": (_html, "selectolax", _selectolax),
    ".csv": (_csv, "csv", _csv_module),
    ".eml": (_mail, "email", message_from_bytes),
    ".xlsx": (_excel, "openpyxl", _openpyxl),
    ".docx": (_word, "mammoth", _mammoth),
    ".pdf": (_pdf, "pypdfium2", _pdfium),
}


def _reader(suffix: str) -> Parse:
    read = (format_of(suffix) or PLAIN_TEXT).read
    return lambda data: read(data, f"file{suffix}")


def _seconds(parse: Parse, data: bytes) -> float:
    """Return the shortest of several durations, after one run that loads the library."""
    durations = []
    for _ in range(_REPEATS + 1):
        start = time.perf_counter()
        parse(data)
        durations.append(time.perf_counter() - start)
    return min(durations[1:])


def measure_reading() -> list[dict[str, Any]]:
    """Return one row per format: the size of the file, and the speeds of its reader and of its library."""
    rows = []
    for suffix, (make, library, parse) in _FORMATS.items():
        data = make()
        size = len(data) / 1e6
        own, alone = _seconds(_reader(suffix), data), _seconds(parse, data)
        speeds = {"MB/s": round(size / own, 2), "library": library, "library MB/s": round(size / alone, 2)}
        rows.append({"format": suffix, "MB": round(size, 2), **speeds})
    return rows


def reading(as_json: AsJson = False) -> None:
    """Measure the speed of reading documents of each format, and of the parsing library alone."""
    rows = measure_reading()
    if as_json:
        typer.echo(json.dumps({"formats": rows}))
        return
    console.out.print(result_table("Speed of reading documents", COLUMNS, rows))


app = program(reading)

if __name__ == "__main__":
    app()
