"""PDF files: reading order, words across line ends and pages, and reports of what cannot be read."""

import io

import pytest
from PIL import Image
from pypdf import PdfWriter

from antiphon.pipelines.citations import cite
from antiphon.pipelines.rendering.segments import citation_location
from antiphon.retrieval import Document, HashEmbedder, chunk_document
from antiphon.retrieval.formats import ocr
from antiphon.retrieval.formats.pdf import read_pdf_document
from antiphon.retrieval.formats.pdf_pages import draw_page, find_on_page
from tests.retrieval.pdf_files import lines, pages_of, shown, stream

count = HashEmbedder().count_tokens
LEFT = [f"On the left side is line {number} of the text" for number in range(9)]
RIGHT = [f"On the right side is line {number} of the text" for number in range(9)]
IMAGE = stream(
    b"\x00", b"/Type /XObject /Subtype /Image /Width 1 /Height 1 /ColorSpace /DeviceGray /BitsPerComponent 8"
)
PICTURE = b"q 612 0 0 792 0 0 cm /Im Do Q"


def read(data: bytes) -> Document:
    return read_pdf_document(data, "a.pdf")


def text_of(*contents: bytes) -> str:
    return read(pages_of(*contents)).text


def test_words_that_are_hyphenated_at_line_ends_are_joined() -> None:
    content = shown(lines("All bees of the commu-", "nity dance in a well-", "known way, a well-known dance."))
    assert text_of(content) == "All bees of the community dance in a well-known way, a well-known dance."


@pytest.mark.parametrize("is_interleaved", [False, True])
def test_columns_are_read_one_after_the_other(is_interleaved: bool) -> None:
    left, right = lines(*LEFT), lines(*RIGHT, left=330)
    texts = [text for pair in zip(left, right, strict=True) for text in pair] if is_interleaved else [*left, *right]
    title = lines("A title that is as wide as both of the columns below it are together on this page", top=740)
    assert text_of(shown([*title, *texts])).replace("\n\n", "\n").splitlines() == [title[0][3], *LEFT, *RIGHT]


def test_cells_of_a_table_stay_on_their_line() -> None:
    rows = [
        text for row in range(6) for text in ((72, 700 - 14 * row, 10, f"bee {row}"), (330, 700 - 14 * row, 10, "7"))
    ]
    assert text_of(shown(rows)).splitlines() == [f"| bee {row} | 7 |" for row in range(6)]


def test_running_headers_footers_and_page_numbers_are_removed() -> None:
    contents = [
        shown(
            [
                (72, 765, 9, "Journal of Bees"),
                *lines(f"Page text {number} begins here.", "It was short. See page 4."),
                (300, 30, 9, f"Page {number} of 3"),
            ]
        )
        for number in (1, 2, 3)
    ]
    document = read(pages_of(*contents))
    assert document.text == "\n\n".join(
        f"Page text {number} begins here.\nIt was short. See page 4." for number in (1, 2, 3)
    )
    assert [document.page(document.text.index(f"text {number}")) for number in (1, 2, 3)] == [1, 2, 3]


BEFORE, AFTER = "Bees of every hive dance so that the others of the hive", "know where the flowers are. Wax melts."


def test_a_sentence_across_a_page_break_is_one_and_its_citation_names_both_pages() -> None:
    pages = [["First line of it.", BEFORE], [AFTER], ["Honey is sweet and keeps for many years."]]
    numbered = [shown([*lines(*page), (300, 30, 9, f"- {number} -")]) for number, page in enumerate(pages, 1)]
    document = read(pages_of(*numbered))
    [passage] = chunk_document(document, count, max_tokens=80)
    assert passage.metadata["page"] == "1-3"
    quotes = {
        f"{BEFORE}\n{AFTER[:27]}": "pp. 1-2",
        BEFORE: "p. 1",
        AFTER[:27]: "p. 2",
        "Honey is sweet and keeps for many years.": "p. 3",
    }
    for quote, place in quotes.items():
        [citation] = cite(quote.replace("\n", " "), [passage])
        assert citation.location == f"page {place.rpartition(' ')[2]}"
        assert citation_location(citation).endswith(f"a.pdf, {place}")
        assert document.text[citation.source_start : citation.source_end] == citation.text


def test_a_word_that_is_hyphenated_at_a_page_end_is_joined() -> None:
    document = read(pages_of(shown(lines("All bees of the commu-")), shown(lines("nity dance."))))
    assert document.text == "All bees of the community dance."
    assert document.page(document.text.index("nity")) == 2


def test_values_of_form_fields_are_read_with_their_names() -> None:
    fields = [
        b"/FT /Tx /T (name) /TU (Full name) /V (Ada Lovelace)",
        b"/FT /Btn /T (keeper) /V /Yes /AS /Yes",
        b"/FT /Btn /T (vegan) /V /Off /AS /Off",
        b"/FT /Ch /T (colour) /V (Yellow) /Opt [(Yellow) (Brown)]",
    ]
    widgets = [
        b"<< /Type /Annot /Subtype /Widget /Rect [150 690 300 710] /DA (/F1 9 Tf) %s >>" % each for each in fields
    ]
    catalog = b"/AcroForm << /Fields [4 0 R 5 0 R 6 0 R 7 0 R] /DR << /Font << /F1 3 0 R >> >> /DA (/F1 9 Tf) >>"
    data = pages_of(shown(lines("Name:")), catalog=catalog, page=b"/Annots [4 0 R 5 0 R 6 0 R 7 0 R]", more=widgets)
    assert read(data).text == "Name:\nFull name: Ada Lovelace\nkeeper: Yes\ncolour: Yellow"


def test_a_bad_page_costs_that_page_only_and_is_reported() -> None:
    data = pages_of(shown(lines("One.")), shown(lines("Two.")), shown(lines("Three.")))
    bad = data.replace(b"/Type /Page /Parent", b"/Type /Pagx /Parent", 2).replace(b"/Type /Pagx", b"/Type /Page", 1)
    torn = data.replace(b"(Two.) Tj", b"((((((((#")
    for broken in (bad, torn):
        document = read(broken)
        assert "One." in document.text
        assert "Three." in document.text
        assert [document.page(document.text.index(word)) for word in ("One.", "Three.")] == [1, 3]
    assert read(torn).warnings == ("page 2 without text: blank, or the content is damaged",)


def test_scanned_pages_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ocr, "is_installed", lambda: False)
    document = read(pages_of(shown(lines("One.")), PICTURE, PICTURE, more=[IMAGE]))
    assert document.text == "One."
    assert document.warnings == ("pages 2, 3 without text, only with pictures: OCR is needed",)
    with pytest.raises(ValueError, match=r"it holds no text .*page 1 without text, only with pictures: OCR is needed"):
        read(pages_of(PICTURE, more=[IMAGE]))


def encrypted(algorithm: str, password: str) -> bytes:
    writer = PdfWriter(clone_from=io.BytesIO(pages_of(shown(lines("One.")))))
    writer.encrypt(user_password=password, owner_password="owner", algorithm=algorithm)
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


@pytest.mark.parametrize("algorithm", ["RC4-40", "RC4-128", "AES-128", "AES-256"])
def test_a_file_that_needs_no_password_to_be_read_is_read(algorithm: str) -> None:
    assert read(encrypted(algorithm, "")).text == "One."


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (encrypted("AES-256", "secret"), "it is encrypted with a password"),
        (
            encrypted("RC4-128", "secret").replace(b"/Filter /Standard", b"/Filter /Strangex"),
            "it is encrypted in a way that PDFium does not support",
        ),
        (pages_of(shown(lines("One.")))[:300], "it is not a readable PDF: its data are damaged"),
        (b"<html>", "it is not a readable PDF: it does not begin with %PDF"),
    ],
)
def test_encrypted_unsupported_damaged_and_other_files_are_told_apart(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read(data)


def test_paragraphs_are_separated_by_empty_lines() -> None:
    texts = [*lines("A title", top=740), *lines("One line.", "Another one.", top=700), *lines("Below.", top=640)]
    assert text_of(shown(texts)) == "A title\n\nOne line.\nAnother one.\n\nBelow."


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
