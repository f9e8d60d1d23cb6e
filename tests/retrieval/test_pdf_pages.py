"""Pages of PDF files as images, and the boxes of texts on them."""

import io

import pytest
from PIL import Image

from antiphon.retrieval.formats.pdf import read_pdf_document
from antiphon.retrieval.formats.pdf_pages import draw_page, find_on_page
from tests.retrieval.pdf_files import lines, pages_of, shown

TEXTS = ("Keys are rotated once a year. Old keys are", "kept for a month in case an admini-", "strator needs one.")
PAGES = pages_of(shown(lines("Bees and honey.")), shown(lines(*TEXTS)))


def test_a_page_is_drawn_as_a_png_of_twice_its_points() -> None:
    image = Image.open(io.BytesIO(draw_page(PAGES, 2)))
    assert (image.format, image.size) == ("PNG", (1224, 1584))
    assert min(image.convert("L").tobytes()) < 50, "the text is drawn"


def test_a_huge_page_is_drawn_with_fewer_pixels() -> None:
    huge = PAGES.replace(b"/MediaBox [0 0 612 792]", b"/MediaBox [0 0 9999 9999]")
    width, height = Image.open(io.BytesIO(draw_page(huge, 1))).size
    assert width * height <= 4_010_000


def test_a_text_is_found_across_lines_and_hyphens() -> None:
    quote = "Old keys are\nkept for a month in case an administrator needs one."
    assert quote in read_pdf_document(PAGES, "keys.pdf").text
    boxes = find_on_page(PAGES, 2, quote)
    assert len(boxes) == 3
    first, second, third = boxes
    assert first[0] > second[0] == pytest.approx(72 / 612, abs=0.01), "it begins in the middle of its first line"
    assert first[1] < second[1] < third[1]
    for left, top, right, bottom in boxes:
        assert 0 < left < right < 1
        assert 0.08 < top < bottom < 0.2


def test_another_text_has_no_boxes() -> None:
    assert find_on_page(PAGES, 2, "Wasps sting.") == find_on_page(PAGES, 2, " \n") == ()


def test_a_missing_page_and_a_damaged_file_are_errors() -> None:
    with pytest.raises(ValueError, match="it has no page 3, only 2"):
        draw_page(PAGES, 3)
    with pytest.raises(ValueError, match="not a readable PDF"):
        find_on_page(b"nothing", 1, "Keys")
