"""Read PowerPoint presentations (pptx) with python-pptx: titles, texts, tables, charts and notes of each slide."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

from antiphon.retrieval.document import Document
from antiphon.retrieval.formats.document_builder import DocumentBuilder
from antiphon.retrieval.formats.equations import EXPONENT, M, linear
from antiphon.retrieval.formats.merged_cells import Merge, with_joined_header
from antiphon.retrieval.formats.numerals import numeral
from antiphon.retrieval.formats.office import PARSER_ERRORS, drawn, drawn_lines, open_office, title_of

_HIDDEN = "ancestor-or-self::*/*/p:cNvPr[@hidden='1' or @hidden='true']"  # itself, or a group that it is in
_NUMBER_MARKS = {"ParenBoth": ("(", ")"), "ParenR": ("", ")"), "Period": ("", ".")}
_READABLE = ("}sp", "}grpSp", "}graphicFrame", "}pic", "/main}r", "/main}m", "}oMath")
_MAX_SHAPES = 200_000


def read_powerpoint_document(data: bytes, source: str) -> Document:
    """Read a presentation; the place of a passage is its slide.

    The parts of a slide are in reading order: from left to right if they are columns, else from top to bottom. Hidden
    slides and shapes are left out and reported, and so are damaged slides, pictures and comments.

    Raises:
        ValueError: The file is damaged, encrypted, or exceeds the limits.
    """
    from pptx import Presentation
    from pptx.exc import PythonPptxError

    office = open_office(data, "a PowerPoint presentation", "ppt/presentation.xml")
    builder, warnings = DocumentBuilder(), office.warnings
    try:
        presentation = Presentation(io.BytesIO(office.data))
        slides = [*presentation.slides]
    except (PythonPptxError, *PARSER_ERRORS) as error:
        raise ValueError(f"it is not a readable presentation ({type(error).__name__}: {error})") from error
    for number, slide in enumerate(slides, 1):
        if slide.element.get("show") in ("0", "false"):
            warnings.append(f"its hidden slide {number} was not read")
            continue
        try:
            size = presentation.slide_width or 0, presentation.slide_height or 0
            if hidden := _add_slide(slide, builder, {"slide": str(number)}, size):
                warnings.append(f"slide {number} has hidden shapes, which were not read: {hidden}")
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        except (PythonPptxError, *PARSER_ERRORS) as error:
            warnings.append(f"slide {number} could only be read in part ({type(error).__name__}: {error})")
    layouts = {
        id(part.element): part for slide in slides for part in (slide.slide_layout, slide.slide_layout.slide_master)
    }
    if shown := sum(_is_text(shape) for part in layouts.values() for shape in part.shapes):
        warnings.append(f"its layouts have text, which was not read: {shown} shapes")
    return builder.build(source, {"title": title_of(office.archive)}, warnings)


def _add_slide(slide: Any, builder: DocumentBuilder, place: dict[str, str], size: tuple[int, int]) -> int:
    """Add the text of a slide of this size; return the number of shapes that are hidden or outside of it."""
    for each in [*slide.element.iter("{*}AlternateContent")]:
        # the first choice that can be read, such as a text with an equation instead of its picture
        choices = each.iterfind("{*}Choice")
        choice = next(
            (one for one in choices if len(one) and all(str(part.tag).endswith(_READABLE) for part in one)), None
        )
        if choice is not None:
            for part in [*choice]:
                each.addprevious(part)
            each.getparent().remove(each)
    title = slide.shapes.title
    if title is not None:
        builder.add_heading(title.text_frame.text, 1, place)
    shapes = [*_shapes(slide.shapes)]
    hidden = [shape for shape in shapes if shape.element.xpath(_HIDDEN) or _is_beside(shape, size)]
    for shape in shapes:
        if shape in hidden or (title is not None and shape.shape_id == title.shape_id):
            continue
        if shape.has_text_frame:
            builder.add(_text(shape.text_frame), place)
        elif getattr(shape, "has_table", False):
            builder.add_table((row, place) for row in _table(shape.table))
        for name in drawn(shape.element):
            builder.add("\n".join(drawn_lines(slide.part.related_part(name).blob)), place)
    if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
        notes = slide.notes_slide.notes_text_frame.text
        builder.add(f"Notes: {notes}" if notes.strip() else "", place)
    return len(hidden)


def _is_text(shape: Any) -> bool:
    """Return whether a shape of a layout is a text that its slides show, instead of a placeholder."""
    return not shape.is_placeholder and shape.has_text_frame and bool(shape.text_frame.text.strip())


def _is_beside(shape: Any, size: tuple[int, int]) -> bool:
    """Return whether a shape is outside of its slide.

    The result is False for a shape in a group, or if the place of the shape is not known.
    """
    if shape.element.getparent().tag.endswith("}grpSp") or None in (shape.left, shape.top, shape.width, shape.height):
        return False
    starts, ends = (shape.left, shape.top), (shape.left + shape.width, shape.top + shape.height)
    return any(end < 0 or start > edge > 0 for start, end, edge in zip(starts, ends, size, strict=True))


def _shapes(shapes: Any) -> Iterator[Any]:
    """Yield the shapes of a slide in reading order. In place of a group, yield the shapes in it."""
    found = [*shapes]
    if len(found) > _MAX_SHAPES:
        raise ValueError(f"a slide has more than {_MAX_SHAPES:,} shapes")
    for shape in _ordered(found):
        if hasattr(shape, "shapes"):
            yield from _shapes(shape.shapes)
        else:
            yield shape


def _ordered(shapes: Sequence[Any]) -> list[Any]:
    """Return shapes in reading order (recursive X-Y cut, Nagy and Seth 1984).

    Shapes that form columns are divided between the columns, all other shapes between rows. Rows
    with the same columns stay together.
    """
    parts = _cut(shapes, "left", "width")
    if len(parts) == 1:
        rows, parts = _cut(shapes, "top", "height"), []
        for row in rows:
            together = [*parts[-1], *row] if parts else []
            if len(_cut(together, "left", "width")) > 1:
                parts[-1] = together
            else:
                parts.append(row)
    if len(parts) > 1:
        return [shape for part in parts for shape in _ordered(part)]
    return sorted(shapes, key=lambda shape: (shape.top or 0, shape.left or 0))


def _cut(shapes: Sequence[Any], start: str, size: str) -> list[list[Any]]:
    """Divide shapes into groups at the gaps between them in one direction."""
    groups, end = list[list[Any]](), 0
    for shape in sorted(shapes, key=lambda shape: getattr(shape, start) or 0):
        begin = getattr(shape, start) or 0
        if not groups or begin >= end:
            groups.append([])
        groups[-1].append(shape)
        end = max(end, begin + (getattr(shape, size) or 0))
    return groups


def _table(table: Any) -> list[list[str]]:
    """Return the rows of a table; a merged cell is repeated, and header rows are joined."""
    cells = [[*row.cells] for row in table.rows]
    merges = [
        Merge(top, left, top + cell.span_height - 1, left + cell.span_width - 1)
        for top, row in enumerate(cells)
        for left, cell in enumerate(row)
        if cell.is_merge_origin
    ]
    return with_joined_header([[cell.text for cell in row] for row in cells], merges)


def _text(frame: Any) -> str:
    """Return the paragraphs of a text frame with their numbers; those below the first level are list items."""
    lines, counts = list[str](), dict[tuple[int, str, int], int]()
    for paragraph in frame.paragraphs:
        text, level = _line(paragraph._p), paragraph.level
        mark = "- " * bool(level)
        if text.strip():
            numbering = paragraph._p.find("{*}pPr/{*}buAutoNum")
            form = (level, "", 0)
            if numbering is not None:
                form = (level, numbering.get("type", ""), int(numbering.get("startAt", 1)))
            counts = {each: count for each, count in counts.items() if each[0] < level or each == form}
            if numbering is not None:
                counts[form] = counts.get(form, form[2] - 1) + 1
                mark = f"{_number(counts[form], form[1])} "
        lines.append("  " * (level - 1) + mark + text if text.strip() else "")
    return "\n".join(lines)


def _number(count: int, kind: str) -> str:
    """Return the number of a paragraph in a format such as ``alphaLcParenR``: ``c)``."""
    letters = {"alpha": "Letter", "roman": "Roman"}.get(kind[:5], "")
    text = numeral(count, ("upper" if kind[5:7] == "Uc" else "lower") + letters)
    before, after = next((marks for end, marks in _NUMBER_MARKS.items() if kind.endswith(end)), ("", ""))
    return before + text + after


def _line(paragraph: Any) -> str:
    """Return the text of a paragraph, with its equations and with ``^`` before the exponent of a number."""
    text = ""
    for each in paragraph.iter():
        if each.tag == f"{M}oMath":
            text += linear(each)
        elif str(each.tag).endswith("/main}br"):
            text += "\n"
        elif str(each.tag).endswith("/main}t"):
            part = (each.text or "").replace("\v", "\n")
            levels = [properties.get("baseline", "0") for properties in each.getparent().iterfind("{*}rPr")]
            is_raised = any(level.strip("0%")[:1].isdigit() for level in levels)  # 30000 and 30%, but not -25000
            text += "^" * bool(is_raised and text[-1:].isdigit() and EXPONENT.fullmatch(part)) + part
    return text
