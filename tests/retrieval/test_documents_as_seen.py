"""Documents are read as people see them, and left-out parts are reported by name."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from antiphon.retrieval.formats import format_of, ocr
from antiphon.retrieval.formats.pdf import read_pdf_document
from tests.retrieval import seen_files as seen
from tests.retrieval.pdf_files import lines, pages_of, shown
from tests.retrieval.sample_files import changed_zip, docx, drm_epub, epub, pptx, xlsx

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parents[3] / "shared" / "data" / "documents"
Texts = tuple[str, ...]
Case = (
    tuple[Callable[[], bytes], Texts]
    | tuple[Callable[[], bytes], Texts, Texts]
    | tuple[Callable[[], bytes], Texts, Texts, Texts]
)
"""A file, texts that it must have, texts that it must not have, and the beginnings of its warnings."""

FILLED = ("| North | Plus | 20 euros |", "| South | Plus | 25 euros |")
READ = ("page 1 scanned and read by OCR",) if ocr.is_installed() else ("page 1 mostly with pictures",)
CLAUSES = ("Scope of the contract", "Duration and notice", "Liability of the parties")
HEADER = "| Part | Opening pressure | Installed | Place |"
TABLE = (f"{HEADER}\n| --- |", "| Valve 45 | 47 bar | 2045 | Room 135 |\n| Valve 46 |")
THREAD = (
    b"it is 6 bar now, since May.\n\nOn Mon, 3 Jun 2024 at 10:00, Ben <ben@example.org> wrote:\n> Hello Eva,\n>\n"
    b"> the opening pressure is 4 bar, is it not?\n>\n"
    b"> On Fri, 31 May 2024, Eva wrote:\n>> What is the opening pressure?\n"
)
WHITE = (("grey", 620), ("white", 500), ("paper", 300))
EVENT = (
    b"BEGIN:VCALENDAR\nBEGIN:VEVENT\nUID:0400\nDTSTART:20240610T120000Z\nSUMMARY:Valve test\nLOCATION:Hall 3\n"
    b"END:VEVENT\nEND:VCALENDAR\n"
)
FLOWED = b"The data \nbase is copied every night to the second ma \nchine.\n"

SEEN: dict[str, Case] = {
    "merged.xlsx": (partial(seen.workbook, seen.FEES, "A2:A4", "A5:A6"), FILLED, ("|  |",)),
    "merged.docx": (seen.merged_docx, FILLED),
    "rowspan.html": (seen.rowspan_html, FILLED),
    "two_headers.xlsx": (
        partial(seen.workbook, seen.SITES, "A1:A2", "B1:C1", "D1:E1"),
        ("| Site | 2023 Budget | 2023 Spent | 2024 Budget | 2024 Spent |\n| --- ", "| Bremen | 100 | 90 | 200 | 150 |"),
    ),
    "formulas.xlsx": (
        partial(seen.workbook, [["Item", "Net", "Gross"], ["Pump", 100, "=B2*2"], ["Total", "=SUM(B2)", "=C2"]]),
        ("| Pump | 100 |",),
        (),
        ("its sheet 'Sheet' has ",),
    ),
    "formats.xlsx": (
        seen.formats_xlsx,
        tuple(f"| {each[2]} |" for each in [*seen.VALUES.values()][:5]),
        ("1e-05", "1 day"),
    ),
    "hidden_parts.xlsx": (
        seen.hidden_xlsx,
        ("| Name | Room |", "| Anna | 12 |"),
        ("4100", "Carla", "Hidden"),
        ("its sheet 'Sheet' has hidden rows, which were not read: 4", "its sheet 'Sheet' has hidden columns, which "),
    ),
    "equation.docx": (
        partial(seen.equation_docx, seen.symbols("Q=v·A")),
        ("The flow rate is computed as Q=v·A in all cases.",),
    ),
    "numbering.docx": (
        partial(seen.clauses_docx, *((f"{text}: this clause", 0, 1) for text in CLAUSES)),
        tuple(f"{number}. {text}: this clause" for number, text in enumerate(CLAUSES, 1)),
    ),
    "datauri.md": (
        lambda: b"# Pump\n\n![a picture](data:image/png;base64,9bFlIkpYt5H/+fYHA=)\n\nIt is checked once a year.\n",
        ("![a picture]()", "It is checked once a year."),
        ("9bFl",),
    ),
    "hybrid.pdf": (
        partial(seen.picture_pdf, shown(lines("Archive 2024/117", top=760))),
        ("Archive 2024/117", *(("The contract ends on 31 March 2027.",) if ocr.is_installed() else ())),
        (),
        READ,
    ),
    "table_two_pages.pdf": (seen.valves_pdf, TABLE),
    "footnote.pdf": (seen.footnote_pdf, ("and it\ncloses at three bar.", "\n\n1 Values from the 2019 survey")),
    "thread.eml": (
        partial(seen.mail, THREAD),
        (
            "it is 6 bar now, since May.",
            "On Mon, 3 Jun 2024 at 10:00, Ben <ben@example.org> wrote:\n\nHello Eva,\n\nthe opening pressure is 4 bar",
            "On Fri, 31 May 2024, Eva wrote:\n\nWhat is the opening pressure?",
        ),
        ("> Hello", ">>", "> On"),
    ),
    "invite.eml": (
        partial(seen.mail, EVENT, b"text/calendar"),
        ("Begins: 2024-06-10 12:00 UTC", "Valve test", "Place: Hall 3"),
        ("UID", "BEGIN"),
    ),
    "flowed.eml": (
        partial(seen.mail, FLOWED, b"text/plain; charset=utf-8; format=flowed; delsp=yes"),
        ("The database is copied every night to the second machine.",),
    ),
}


OUTLOOK = b"Please see below.\n\n-----Original Message-----\nFrom: Ben\nSent: Monday\nSubject: Valve\n\nIs it 4 bar?\n"
KINDS: dict[str, Case] = {
    "values.xlsx": (seen.formats_xlsx, tuple(f"| {name} | {each[2]} |" for name, each in seen.VALUES.items())),
    "title.xlsx": (
        partial(seen.workbook, [["Fees of 2024", None, None], *seen.FEES], "A1:C1", "A3:A5"),
        ("Fees of 2024\n\n| Region |", FILLED[0]),
        ("Fees of 2024 |",),
    ),
    "two_tables.xlsx": (
        partial(
            seen.workbook,
            [
                *(["Part", "Price"], ["Pump", 5], ["Valve", 7], [None], ["Rope", 9], [None], ["Staff of 2024"]),
                *(["Name", "Room", "Telephone"], ["Eva", 12, 117]),
            ],
        ),
        ("| Valve | 7 |\n| Rope | 9 |\n\nStaff of 2024\n\n| Name | Room | Telephone |\n| --- ",),
    ),
    "address.xlsx": (  # a wide header without names below it
        partial(
            seen.workbook,
            [["Name", "Address", None], ["Eva", "Main Road", "Bremen"], ["Ben", "Hill", "Kassel"]],
            "B1:C1",
        ),
        ("| Name | Address | Address |\n| --- ", "| Eva | Main Road | Bremen |"),
    ),
    "beside.xlsx": (
        partial(
            seen.workbook,
            [
                *(["Part", "Price", None, "Name", "Room"], ["Pump", 5, None, "Eva", 12], ["Valve", 7, None, "Ben", 14]),
                ["Rope", 9],
            ],
        ),
        ("| Part | Price |\n| --- ", "| Rope | 9 |\n\n| Name | Room |\n| --- ", "| Ben | 14 |"),
        ("|  |",),
    ),
    "apart.xlsx": (  # one table with an empty column
        partial(
            seen.workbook, [["Part", "Price", None, "Weight", "Place"], ["Pump", 5, None, 12, "Hall"], ["Rope", 9]]
        ),
        ("| Pump | 5 |  | 12 | Hall |",),
    ),
    "levels.docx": (
        partial(
            seen.clauses_docx,
            *(("Terms", 0, 1), ("Scope", 1, 1), ("first", 2, 1), ("second", 2, 1), ("Notice", 1, 1), ("third", 2, 1)),
            *(("Other", 0, 1), ("General", 0, 2), ("Again", 0, 3), ("More", 0, 3)),
        ),
        (
            *(
                "1. Terms",
                "1.1 Scope",
                "(a) first",
                "(b) second",
                "1.2 Notice",
                "(a) third",
                "2. Other",
                "Part I General",
            ),
            *("7. Again", "8. More"),
        ),
    ),
    "fraction.docx": (
        seen.sum_docx,
        ("(a+b)/2+∑_i^n x^(i+1)+√((y)) in all",),
    ),
    "hidden.docx": (
        lambda: seen.word(
            seen.paragraph("Seen.", "", seen.run("Secret.", "<w:vanish/>")),
            header1=f"<w:hdr>{seen.run('Draft')}</w:hdr>",
        ),
        ("Seen.",),
        ("Secret", "Draft"),
        ("its hidden text was not read: 1", "its headers and footers were not read: 1"),
    ),
    "slides.pptx": (
        seen.slides_pptx,
        ("left above\n\nleft below\n\nright above\n\nright below", "East; First quarter: 19.2\nWest;", FILLED[0]),
        ("Withdrawn", "beside the slide", "in a hidden group"),
        ("its hidden slide 2 was not read", "slide 1 has hidden shapes, which were not read: 2"),
    ),
    "styles.docx": (
        lambda: seen.word(
            seen.paragraph("Seen.", "", seen.run("Secret.", '<w:rStyle w:val="Based"/>'))
            + seen.paragraph("Covert.", '<w:pStyle w:val="Based"/>'),
            styles=f"<w:styles {seen.NAMESPACES}><w:style w:type='character' w:styleId='Own'><w:rPr><w:vanish/></w:rPr>"
            "</w:style><w:style w:type='character' w:styleId='Based'><w:basedOn w:val='Own'/></w:style></w:styles>",
        ),
        ("Seen.",),
        ("Secret", "Covert"),
        ("its hidden text was not read: 2",),
    ),
    "fields.docx": (
        lambda: seen.word(
            f"<w:p><w:fldSimple w:instr='SEQ'>{seen.run('Table 1')}</w:fldSimple>{seen.run(' has 10')}"
            + seen.run("6", '<w:vertAlign w:val="superscript"/>')
            + seen.run(" parts.")
            + "<w:r><w:footnoteReference w:id='77'/></w:r></w:p>"
        ),
        ("Table 1 has 10^6 parts.",),
    ),
    "numbers.pptx": (
        seen.numbered_pptx,
        ("1. Open\n2. Close\nA. Lock\nb) Wait\ng) Call\nthe 1st of 10^6 in CO2", "E=x^2"),
        (),
        ("its layouts have text, which was not read: 1",),
    ),
    "marks.html": (
        lambda: (
            b"<table><caption>Fees</caption><tr><th>Plan<th>Fee<tr><td>Basic<td>10<sup>3</sup></table><p><input "
            b"type=checkbox checked>paid<input type=checkbox>open<p style='mso-hide:all'>Preview<p>in 2019<sup><a>1</a>"
            b"<p><math><mfrac><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow><mi>c</mi></mfrac><msqrt><mi>x</mi></msqrt>"
        ),
        ("Fees\n\n| Plan | Fee |", "10^3", "\u2612 paid \u2610 open", "in 20191", "(a+b)/c\u221a(x)"),
        ("Preview",),
    ),
    "lists.html": (
        lambda: b"<ol start=3 type=a><li>x<li value=9>y</ol><ol reversed><li>two<li>one</ol><ul><li>dot</ul>",
        ("c. x\ni. y", "2. two\n1. one", "- dot"),
    ),
    "table.md": (
        lambda: b"# Fees\n\n" + seen.rowspan_html().replace(b"<tr>", b"\n\n<tr>") + b"\n\n```\n<table>\n```\n",
        ("# Fees", "| Region | Plan | Monthly fee |\n|---", *FILLED, "```\n<table>\n```"),
    ),
    "headers.html": (
        lambda: (
            b"<table><tr><th rowspan=2>Site<th colspan=2>2023<tr><th>Budget<th>Spent<tr><td>Bremen<td>1<td>2</table>"
        ),
        ("| Site | 2023 Budget | 2023 Spent |\n|---|---|---|\n| Bremen | 1 | 2 |",),
    ),
    "repeated.pdf": (partial(seen.valves_pdf, repeated=True), TABLE, (f"45 | 47 bar | 2045 | Room 135 |\n{HEADER}",)),
    "rotated.pdf": (seen.rotated_pdf, ("bee number 7 flies to the garden and back\nwasp number 0",)),
    "invisible.pdf": (
        lambda: pages_of(shown(lines("Visible words.")) + b" 3 Tr " + shown(lines("Secret words.", top=500))),
        ("Visible words.",),
        ("Secret",),
        ("page 1 with invisible text, which was not read",),
    ),
    "covered.pdf": (
        lambda: pages_of(
            b"0.9 g 60 690 300 40 re f 0 g "
            + shown(lines("Visible: Secret words, visible end."))
            + b" 0 g 105 695 66 14 re f 1 0 0 RG 60 690 300 40 re S"
        ),
        ("Visible:", "visible end."),
        ("Secret",),
        ("page 1 with invisible text, which was not read",),
    ),
    "drawn_over.pdf": (
        seen.drawn_over_pdf,
        (*(f"Visible {page}." for page in (0, 1, 2, 3, 4, 5, 7)), "Visible again."),
    ),
    "turned.pdf": (seen.turned_pdf, ("Visible:", "visible end.", "visible rest."), ("Secret", "words", "beginning")),
    "outside.pdf": (
        lambda: pages_of(shown([*lines("Visible words."), (2000.0, 400.0, 10.0, "Words beside the page.")])),
        ("Visible words.",),
        ("beside",),
        ("page 1 with invisible text, which was not read",),
    ),
    "white.pdf": (
        lambda: pages_of(
            b"0.2 g 70 600 300 40 re f 1 g 70 480 300 40 re f "
            + b" ".join(shown(lines(f"White on {ground}.", top=top)) for ground, top in WHITE)
        ),
        ("White on grey.",),
        ("on white", "on paper"),
        ("page 1 with invisible text, which was not read",),
    ),
    "outlook.eml": (partial(seen.mail, OUTLOOK), ("Please see below.\n\nQuoted message\n\nFrom: Ben",), ("-----",)),
    "outlook_page.eml": (
        partial(
            seen.mail,
            b"<p>It is 6 bar.</p><div><p><b>From:</b> Ben<br><b>Sent:</b> Monday<br><b>Subject:</b> Valve</p></div>"
            b"<p>Is it 4 bar?</p>",
            b"text/html; charset=utf-8",
        ),
        ("It is 6 bar.\n\nQuoted message\n\nFrom: Ben",),
    ),
    "cancelled.eml": (
        partial(
            seen.mail,
            b"BEGIN:VCALENDAR\nBEGIN:VEVENT\nBEGIN:VALARM\nDESCRIPTION:Reminder\nEND:VALARM\nSUMMARY:Valve test\n"
            b"RRULE:FREQ=WEEKLY\nORGANIZER;CN=Ben:mailto:b@x.org\nSTATUS:CANCELLED\nEND:VEVENT\nEND:VCALENDAR\n",
            b"text/calendar",
        ),
        ("Valve test\nRepeats: FREQ=WEEKLY\nOrganizer: Ben\nStatus: CANCELLED",),
        ("Reminder",),
    ),
    "below.eml": (
        partial(seen.mail, b"Ben wrote:\n> Is it 4 bar?\n\nNo, 6 bar.\n"),
        ("No, 6 bar.\n\nBen wrote:\n\nIs it",),
    ),
    "between.eml": (
        partial(seen.mail, b"Hello Ben,\n> Is it 4 bar?\nNo, 6 bar.\n> And in May?\nIn May as well.\n"),
        ("Is it 4 bar?\n\nEva <eva@example.org>\n\nNo, 6 bar.",),
    ),
    "reply.eml": (
        partial(
            seen.mail,
            b"<p>It is 6 bar.</p><div>Ben wrote:</div><blockquote><p>Is it 4 bar?</p><div>Eva wrote:</div><blockquote>"
            b"What is it?</blockquote></blockquote>",
            b"text/html; charset=utf-8",
        ),
        ("It is 6 bar.\n\nBen wrote:\n\nIs it 4 bar?\n\nEva wrote:\n\nWhat is it?",),
    ),
    "quotes.eml": (partial(seen.mail, b"\x93Yes\x94, he said", b"text/plain; charset=iso-8859-1"), ("“Yes”, he",)),
    "old.csv": (
        lambda: "Straße;Größe\nÄußere Gasse;groß\n".encode("cp1252"),
        ("| Straße |",),
        (),
        ("its encoding was ",),
    ),
    "dos.txt": (
        lambda: ("Die Prüfung der Größe erfolgt jährlich. Frau Müller ist zuständig.\r" * 4).encode("cp850"),
        ("Die Prüfung der Größe erfolgt jährlich. Frau Müller ist zuständig.\nDie",),
        (),
        ("its encoding was ",),
    ),
    "error.ipynb": (
        lambda: (
            b'{"cells": [{"cell_type": "code", "source": "", "outputs": [{"ename": "ValueError", "evalue": "bad"}]}]}'
        ),
        ("ValueError: bad",),
    ),
    "named.csv": (
        lambda: b"sep=;\nName;Price, net\nPump;1,5\nValve;2,5\n",
        ("| Name | Price, net |\n| ---",),
        ("sep=",),
    ),
    "icon.py": (
        lambda: b"ICON = (\n" + b'    b"%s"\n' % (b"iVBORw0KGgo4" * 6) * 9 + b')\nSIZES = "a list"\n',
        ("ICON", 'SIZES = "a list"'),
        ("iVBOR",),
    ),
    "icon.c": (
        lambda: b"char icon[] = {" + b"0x1f, 0x8b,\n" * 40 + b"};\nint size;\n",
        ("char icon[]", "int size;"),
        ("0x1f, 0x8b,\n0x1f",),
    ),
    "data.json": (
        lambda: (
            b'{"name": "Pump", "page": "%s end", "icon": "%s"}'
            % (b"A-Long-Name/of-2024_" * 20, b"iVBORw0KG" * 40 + b"-_")
        ),
        ("name: Pump", "_ end"),
        ("iVBOR",),
    ),
    "damaged.pptx": (
        lambda: changed_zip(pptx(), {"ppt/slides/slide1.xml": lambda old: old[:400]}),
        ("The supplier may fail",),
        (),
        ("its part ppt/slides/slide1.xml is damaged and was not read",),
    ),
    "damaged.xlsx": (
        lambda: changed_zip(xlsx(), {"xl/worksheets/sheet1.xml": lambda old: old[: old.index(b'<row r="6"')]}),
        ("| Desk 0 | 100.5 |", "| Ann | 12 |"),
        (),
        ("its sheet 'Costs' is damaged below row 5",),
    ),
    "damaged.docx": (
        lambda: changed_zip(docx(), {"word/footnotes.xml": lambda _: b"<w:footnotes"}),
        ("A night costs at most 120 euros.",),
        (),
        ("its part word/footnotes.xml is damaged and was not read",),
    ),
    "damaged.epub": (
        lambda: changed_zip(epub(), {"OPS/one 1.xhtml": lambda _: b"\0\1\2\xff"}),
        ("The ship leaves at dawn.",),
        (),
        ("its chapter 'OPS/one 1.xhtml' was not read: it is binary",),
    ),
    "locked.epub": (
        drm_epub,
        ("They reach the harbour.",),
        ("ship leaves",),
        ("its chapter 'OPS/two.xhtml' was not read: it is encrypted",),
    ),
    "damaged.jsonl": (
        lambda: b'{"a": 1}\n{"a": \n{"a": 3}\n',
        ("a: 1", "a: 3"),
        (),
        ("line 2 was not read: it is not",),
    ),
}


def check(data: bytes, name: str, case: Case) -> None:
    _, present, absent, warnings = (*case, (), ())[:4]
    document = format_of(Path(name).suffix).read(data, name)  # type: ignore[union-attr]
    assert document is not None
    assert [text for text in present if text not in document.text] == [], document.text
    assert [text for text in absent if text in document.text] == [], document.text
    for start in warnings:
        assert any(each.startswith(start) for each in document.warnings), document.warnings


@pytest.mark.parametrize("name", [*SEEN, *KINDS])
def test_a_document_is_read_as_its_reader_sees_it(name: str) -> None:
    case = (SEEN | KINDS)[name]
    check(case[0](), name, case)


def test_a_page_in_a_font_without_letters_is_named() -> None:
    recorded = RECORDED / "no_tounicode.pdf"
    for data in (seen.unlettered_pdf(), *([recorded.read_bytes()] if recorded.exists() else [])):
        with pytest.raises(ValueError, match="page 1 in a font that names no letters"):
            read_pdf_document(data, "a.pdf")


@pytest.mark.skipif(not RECORDED.exists(), reason=f"recorded documents are absent: {RECORDED}")
@pytest.mark.parametrize("name", SEEN)
def test_a_recorded_document_is_read_as_its_reader_sees_it(name: str) -> None:
    check((RECORDED / name).read_bytes(), name, SEEN[name])
