"""Small files whose readers see more than their bytes say: merged cells, automatic numbers, quoted messages, scans."""

import io
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tests.retrieval.pdf_files import FONT, lines, pages_of, shown, stream
from tests.retrieval.sample_files import changed_zip, docx

NAMESPACES = (
    'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" '
    'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'
)
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
Rows = Sequence[Sequence[Any]]

FEES: Rows = [
    ["Region", "Plan", "Monthly fee"],
    *(["North", "Basic", "10 euros"], ["", "Plus", "20 euros"], ["", "Pro", "30 euros"]),
    *(["South", "Basic", "15 euros"], ["", "Plus", "25 euros"]),
]
SITES: Rows = [
    ["Site", 2023, None, 2024, None],
    ["", "Budget", "Spent", "Budget", "Spent"],
    ["Bremen", 100, 90, 200, 150],
    ["Kassel", 110, 95, 210, 170],
]
VALUES = {  # the value, its number format, and what is shown
    "Discount": (0.15, "0%", "15%"),
    "Customer number": (4711, "00000000", "00004711"),
    "Working time": (1.5625, "[h]:mm", "37:30"),
    "Small": (1e-05, "0.00000", "0.00001"),
    "Thousands": (1500000, '#,##0,"k"', "1,500k"),
    "Debt": (-1234.5, '_-* #,##0.00 [$€-407]_-;(#,##0.00 "€")', "(1,234.50 €)"),
    "Nothing": (0, '0;-0;"none"', "none"),
    "Tax number": (123456789, "000-00-0000", "123-45-6789"),
    "Count": (1500, "0.00E+00", "1.50E+03"),
    "Sum": (0.1 + 0.2, "General", "0.3"),
    "Deadline": (45717, "dd.mm.yyyy", "2025-03-01"),
    "Opening": (0.3125, "hh:mm", "07:30"),
    "Approved": (True, "General", "TRUE"),
    "Code": (4711, ";;;", ""),
    "Signature": ("Eva", ";;;", ""),
    "Millions": (-3400, '[>=1000000]0.0,,"M";[<0]0.0,"k";0', "-3.4k"),
    "Share": (2.25, "# ?/?", "2 1/4"),
    "Eighths": (-0.5, "?/8", "-4/8"),
}


def workbook(rows: Rows, *merged: str, change: Callable[[Any], None] = lambda sheet: None) -> bytes:
    from openpyxl import Workbook

    book, out = Workbook(), io.BytesIO()
    for row in rows:
        book.active.append(row)
    for cells in merged:
        book.active.merge_cells(cells)
    change(book.active)
    book.save(out)
    return out.getvalue()


def formats_xlsx() -> bytes:
    def change(sheet: Any) -> None:
        for row, (_, code, _) in enumerate(VALUES.values(), 2):
            sheet.cell(row, 2).number_format = code

    rows: list[list[Any]] = [["Name", "Value"], *([name, each[0]] for name, each in VALUES.items())]
    return workbook(rows, change=change)


def hidden_xlsx() -> bytes:
    def change(sheet: Any) -> None:
        sheet.column_dimensions["B"].hidden = sheet.row_dimensions[4].hidden = True
        other = sheet.parent.create_sheet("Old")
        other.append(["Hidden", "Value"])
        other.sheet_state = "hidden"

    rows: Rows = [["Name", "Salary", "Room"], ["Anna", 4100, 12], ["Bernd", 3900, 14], ["Carla", 5200, 16]]
    return workbook(rows, change=change)


def rowspan_html() -> bytes:
    rows = ["<th>".join(["", *FEES[0]])]
    for region, plan, fee in FEES[1:]:
        span = f"<td rowspan={3 if region == 'North' else 0}>{region}" if region else ""
        rows.append(f"{span}<td>{plan}<td>{fee}")
    return f"<!doctype html><table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>".encode()


def word(body: str, **parts: str) -> bytes:
    """A Word document with this body; ``parts`` are further parts."""
    parts["document"] = f"<w:document {NAMESPACES}><w:body>{body}</w:body></w:document>"
    return changed_zip(docx(), {f"word/{name}.xml": partial(_replaced, xml) for name, xml in parts.items()})


def _replaced(xml: str, old: bytes) -> bytes:
    return xml.encode()


def paragraph(text: str, properties: str = "", more: str = "") -> str:
    return f"<w:p><w:pPr>{properties}</w:pPr>{run(text)}{more}</w:p>"


def run(text: str, properties: str = "") -> str:
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def merged_docx() -> bytes:
    def cell(text: str, properties: str = "") -> str:
        return f"<w:tc><w:tcPr>{properties}</w:tcPr>{paragraph(text)}</w:tc>"

    rows = "".join(map(cell, FEES[0]))
    table = f"<w:tr>{rows}</w:tr>"
    for region, *others in FEES[1:]:
        merge = f'<w:vMerge w:val="{"restart" if region else "continue"}"/>'
        table += f"<w:tr>{cell(region, merge)}{''.join(map(cell, others))}</w:tr>"
    return word(f"<w:tbl>{table}</w:tbl>")


def clauses_docx(*clauses: tuple[str, int, int]) -> bytes:
    """Numbered paragraphs: their texts, levels and lists. Lists 1 and 3 count together; list 3 begins again at 7."""
    forms = [("decimal", "%1."), ("decimal", "%1.%2"), ("lowerLetter", "(%3)")], [("upperRoman", "Part %1")]
    lists = "".join(
        f'<w:abstractNum w:abstractNumId="{number}">'
        + "".join(
            f'<w:lvl w:ilvl="{level}"><w:numFmt w:val="{form}"/><w:lvlText w:val="{text}"/></w:lvl>'
            for level, (form, text) in enumerate(levels)
        )
        + "</w:abstractNum>"
        for number, levels in enumerate(forms)
    )
    override = '<w:lvlOverride w:ilvl="0"><w:startOverride w:val="7"/></w:lvlOverride>'
    for number, used, more in ((1, 0, ""), (2, 1, ""), (3, 0, override)):
        lists += f'<w:num w:numId="{number}"><w:abstractNumId w:val="{used}"/>{more}</w:num>'
    body = (
        paragraph(text, f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{number}"/></w:numPr>')
        for text, level, number in clauses
    )
    return word("".join(body), numbering=f"<w:numbering {NAMESPACES}>{lists}</w:numbering>")


def equation_docx(math: str) -> bytes:
    return word(paragraph("The flow rate is computed as ", "", f"<m:oMath>{math}</m:oMath>{run(' in all cases.')}"))


def symbols(text: str) -> str:
    return f"<m:r><m:t>{text}</m:t></m:r>"


def sum_docx() -> bytes:
    """An equation with a fraction, a sum with bounds, a power, and a root of parentheses."""
    half = f"<m:f><m:num>{symbols('a+b')}</m:num><m:den>{symbols('2')}</m:den></m:f>{symbols('+')}"
    power = f"<m:sSup><m:e>{symbols('x')}</m:e><m:sup>{symbols('i+1')}</m:sup></m:sSup>"
    bounds = f"<m:naryPr><m:chr m:val='∑'/></m:naryPr><m:sub>{symbols('i')}</m:sub><m:sup>{symbols('n')}</m:sup>"
    root = f"<m:rad><m:deg/><m:e><m:d><m:e>{symbols('y')}</m:e></m:d></m:e></m:rad>"
    return equation_docx(f"{half}<m:nary>{bounds}<m:e>{power}</m:e></m:nary>{symbols('+')}{root}")


def slides_pptx() -> bytes:
    """A slide with two columns of boxes, drawn in another order, a chart and a merged cell; then a hidden slide."""
    from pptx import Presentation
    from pptx.chart.data import CategoryChartData
    from pptx.enum.chart import XL_CHART_TYPE
    from pptx.util import Inches

    presentation, out = Presentation(), io.BytesIO()
    slide, hidden = (presentation.slides.add_slide(presentation.slide_layouts[5]) for _ in range(2))
    slide.shapes.title.text, hidden.shapes.title.text = "Sales", "Withdrawn"
    hidden.element.set("show", "0")
    for text, left, top in (("right below", 5, 3), ("left above", 0, 2), ("right above", 5, 2), ("left below", 0, 3)):
        slide.shapes.add_textbox(*map(Inches, (left, top, 4, 0.5))).text_frame.text = text
    slide.shapes.add_textbox(*map(Inches, (30, 1, 4, 0.5))).text_frame.text = "beside the slide"
    group: Any = slide.shapes.add_group_shape()
    group.shapes.add_textbox(*map(Inches, (1, 1, 4, 0.5))).text_frame.text = "in a hidden group"
    group.element.nvGrpSpPr.cNvPr.set("hidden", "1")
    data: Any = CategoryChartData()  # type: ignore[no-untyped-call]
    data.categories = ["East", "West"]
    data.add_series("First quarter", (19.2, 21.4))
    slide.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, *map(Inches, (0, 4, 9, 2)), data)
    table = slide.shapes.add_table(6, 3, *map(Inches, (0, 6.5, 9, 1))).table
    for row, cells in enumerate(FEES):
        for column, text in enumerate(cells):
            table.cell(row, column).text = text
    table.cell(1, 0).merge(table.cell(3, 0))
    presentation.save(out)
    return out.getvalue()


def numbered_pptx() -> bytes:
    """A slide with numbered paragraphs, raised texts, ink and an equation; its layout has a text, too."""
    from pptx import Presentation
    from pptx.oxml import parse_xml

    presentation, out = Presentation(), io.BytesIO()
    layout = presentation.slide_layouts[6]
    slide = presentation.slides.add_slide(layout)
    frame = slide.shapes.add_textbox(0, 1, 10, 1).text_frame
    frame.text = "Open\nClose\nLock\nWait\nCall\n"
    kinds = (("arabicPeriod", 1), ("arabicPeriod", 1), ("alphaUcPeriod", 1), ("alphaLcParenR", 2), ("alphaLcParenR", 7))
    for each, (kind, start) in zip(frame.paragraphs, kinds, strict=False):
        number = f"<a:buAutoNum xmlns:a='{DRAWING}' type='{kind}' startAt='{start}'/>"
        each._p.get_or_add_pPr().append(parse_xml(number))
    for text, baseline in (
        ("the 1", "0"),
        ("st", "30000"),
        (" of 10", "0"),
        ("6", "30%"),
        (" in CO", "0"),
        ("2", "-25%"),
    ):
        frame.paragraphs[-1].add_run().text = text
        frame.paragraphs[-1].runs[-1]._r.get_or_add_rPr().set("baseline", baseline)
    box = slide.shapes.add_textbox(0, 9, 10, 1)
    power = f"<m:sSup><m:e>{symbols('x')}</m:e><m:sup>{symbols('2')}</m:sup></m:sSup>"
    box.text_frame.paragraphs[0]._p.append(parse_xml(f"<m:oMath {NAMESPACES}>{symbols('E=')}{power}</m:oMath>"))
    compatibility = "http://schemas.openxmlformats.org/markup-compatibility/2006"
    choices = "<w:Choice><w:contentPart/></w:Choice><w:Choice/><w:Choice><w:sp/></w:Choice><w:Fallback/>"
    wrapper = parse_xml(f"<w:AlternateContent xmlns:w='{compatibility}'>{choices}</w:AlternateContent>")
    box.element.addprevious(wrapper)
    wrapper[1].append(box.element)
    mark = slide.shapes.add_textbox(0, 0, 10, 1)
    mark.text_frame.text = "Draft"
    layout.shapes._spTree.append(mark.element)
    presentation.save(out)
    return out.getvalue()


def valves_pdf(*, repeated: bool = False) -> bytes:
    """A table of 60 rows on two pages, the second with the header again if it is ``repeated``."""
    header = [("Part", "Opening pressure", "Installed", "Place")]
    rows = [(f"Valve {n}", f"{n + 2} bar", str(2000 + n), f"Room {3 * n}") for n in range(1, 61)]
    pages = [header + rows[:45], header * repeated + rows[45:]]
    lefts = (72, 200, 330, 430)
    placed = (
        [(x, 740 - 14 * y, 10, text) for y, row in enumerate(page) for x, text in zip(lefts, row, strict=True)]
        for page in pages
    )
    return pages_of(*map(shown, placed))


def footnote_pdf() -> bytes:
    body = lines(
        "The safety valve of the north boiler opens at four bar as soon as the pump of the",
        "secondary circuit has been running for at least ten minutes without any fault, and it",
    )
    note = [(72.0, 60.0, 7.0, "1 Values from the 2019 survey, without the south boiler.")]
    return pages_of(shown([*body, *note]), shown(lines("closes at three bar. It is checked once a year.")))


def picture_pdf(typed: bytes = b"") -> bytes:
    """A page with what is typed, and a picture of two lines of text that fills it."""
    from PIL import Image, ImageDraw

    image = Image.new("L", (1224, 1400), 255)
    for row, text in enumerate(("The contract ends on 31 March 2027.", "The deposit is 4,000 euros.")):
        ImageDraw.Draw(image).text((100, 200 + 120 * row), text, 0, font_size=48)
    entries = b"/Type /XObject /Subtype /Image /Width 1224 /Height 1400 /ColorSpace /DeviceGray /BitsPerComponent 8"
    picture = stream(zlib.compress(image.tobytes()), entries + b" /Filter /FlateDecode")
    return pages_of(typed + b" q 612 0 0 700 0 20 cm /Im Do Q", more=[picture])


def unlettered_pdf() -> bytes:
    """A page whose font names glyphs that stand for no letters."""
    names = b" ".join(b"/g%d" % number for number in range(32, 127))
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /ABCDEF+Own /Encoding << /Differences [32 %s] >> >>" % names
    return pages_of(shown(lines("The boiler opens at four bar"))).replace(FONT, font)


def rotated_pdf() -> bytes:
    """A page that is turned by 90 degrees, with two columns."""
    texts = [
        (x, 500 - 14 * row, f"{animal} number {row} flies to the garden and back")
        for row in range(8)
        for x, animal in ((72, "bee"), (400, "wasp"))
    ]
    content = (f"BT /F1 10 Tf 0 1 -1 0 {612 - y} {x} Tm ({text}) Tj ET" for x, y, text in texts)
    return pages_of("\n".join(content).encode(), page=b"/Rotate 90")


def drawn_over_pdf() -> bytes:
    """Pages on which the word "Visible" stays in sight, though shapes are drawn over or around it."""
    shapes = (
        b"60 690 m 300 690 l 180 760 l 60 690 l f",  # a triangle
        b"60 600 m 300 790 l 301 791 l 61 601 l h f",  # a diagonal line
        b"60 690 m 60 760 300 760 300 690 c f",  # a curve
        b"0.7 0.7 -0.7 0.7 110 640 cm 0 0 90 90 re f",  # a rotated square
        b"0 0 612 600 re W n 0 0 612 792 re f",  # a rectangle that is clipped
        b"60 702 300 2 re f",  # a line through the word
        b"1 g 60 690 300 40 re f 0 g " + shown(lines("Visible again.")),
        b"".join(b"%d %d 5 5 re f " % (x, y) for x in range(60, 610, 6) for y in range(600, 750, 6)),
    )
    return pages_of(*(shown(lines(f"Visible {page}.")) + b" q " + each + b" Q" for page, each in enumerate(shapes)))


def turned_pdf() -> bytes:
    """Upright text with a bar over words in its middle, and one over the beginning of the next line."""
    texts = ((300, "Visible: Secret words, visible end."), (330, "Secret beginning, visible rest."))
    content = "\n".join(f"BT /F1 10 Tf 0 1 -1 0 {x} 100 Tm ({text}) Tj ET" for x, text in texts)
    return pages_of(content.encode() + b" 290 133 15 66 re f 320 95 15 81 re f", page=b"/Rotate 90")


def mail(body: bytes, kind: bytes = b"text/plain; charset=utf-8") -> bytes:
    headers = b"From: Eva <eva@example.org>\nSubject: Valve\nMIME-Version: 1.0\nContent-Type: " + kind
    return headers + b"\n\n" + body
