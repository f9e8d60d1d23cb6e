"""Scanned pages are read by OCR, with their pages in citations, progress, and a warning."""

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import pytest
from PIL import Image, ImageDraw, ImageFont

from antiphon.pipelines.citations import cite
from antiphon.retrieval import Document, HashEmbedder, chunk_document, load_documents
from antiphon.retrieval.formats import ocr
from antiphon.retrieval.formats.pdf import read_pdf_document

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

FIRST = ["Minutes of the harbour committee", "", "The crane on pier 4 is repaired before 12 March."]
SECOND = ["Mr Dunn asks three companies for an offer,", "and reports to the committee in April."]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Document:
    folder = tmp_path_factory.mktemp("scans")
    (folder / "minutes.pdf").write_bytes(scanned_pdf(FIRST, [], SECOND))
    loaded = load_documents([folder])
    [document] = loaded.documents
    return document


def test_the_text_of_scanned_pages_is_read_in_order(document: Document) -> None:
    assert document.text.split() == [word for line in (*FIRST, *SECOND) for word in line.split()]


def test_a_citation_of_a_scanned_page_names_the_page(document: Document) -> None:
    passages = chunk_document(document, HashEmbedder().count_tokens)
    [citation] = cite("reports to the committee in April", passages)
    assert citation.location == "page 3"
    assert document.text[citation.source_start : citation.source_end] == citation.text


def test_recognized_pages_and_pages_without_text_are_reported(document: Document) -> None:
    read, unread = document.warnings
    assert read.startswith("pages 1, 3 scanned and read by OCR, with a confidence of 9")
    assert unread == "page 2 without text, only with pictures, in which OCR found no text"


def test_a_scan_without_text_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^it holds no text; page 1 without text, only with pictures, in which OCR found no text"
    ):
        read_pdf_document(scanned_pdf([]), "scan.pdf")


def test_without_the_extra_a_scan_is_refused_with_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ocr, "is_installed", lambda: False)
    with pytest.raises(ValueError, match=r"page 1 without text, only with pictures: OCR is needed"):
        read_pdf_document(scanned_pdf(["Text."]), "scan.pdf")


_FONT = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
_SIZE = 1240, 1754  # A4 at 150 dpi


def scanned_pdf(*pages: Sequence[str]) -> bytes:
    """Return a PDF file with a picture of these lines on each page."""
    font = ImageFont.truetype(str(_FONT), 26)
    images = []
    for lines in pages:
        image = Image.new("L", _SIZE, 255)
        draw = ImageDraw.Draw(image)
        for place, line in enumerate(lines):
            draw.text((120, 150 + 44 * place), line, fill=0, font=font)
        images.append(image)
    out = io.BytesIO()
    images[0].save(out, "PDF", save_all=True, append_images=images[1:], resolution=150)
    return out.getvalue()
