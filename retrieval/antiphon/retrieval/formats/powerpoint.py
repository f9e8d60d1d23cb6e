"""Read PowerPoint presentations (pptx) with python-pptx: titles, texts, tables and notes of each slide."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from antiphon.retrieval.document import Document
from antiphon.retrieval.formats.document_builder import DocumentBuilder
from antiphon.retrieval.formats.office import PARSER_ERRORS, open_office, title_of

_MAX_SHAPES = 200_000


def read_powerpoint_document(data: bytes, source: str) -> Document:
    """Read a presentation; the place of a passage is its slide.

    Raises:
        ValueError: The file is damaged, encrypted, or exceeds the limits.
    """
    from pptx import Presentation
    from pptx.exc import PythonPptxError

    archive = open_office(data, "a PowerPoint presentation", "ppt/presentation.xml")
    builder = DocumentBuilder()
    try:
        for number, slide in enumerate(Presentation(io.BytesIO(data)).slides, 1):
            _add_slide(slide, builder, {"slide": str(number)})
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except (PythonPptxError, *PARSER_ERRORS) as error:
        raise ValueError(f"it is not a readable presentation ({type(error).__name__}: {error})") from error
    return builder.build(source, {"title": title_of(archive)})


def _add_slide(slide: Any, builder: DocumentBuilder, place: dict[str, str]) -> None:
    title = slide.shapes.title
    if title is not None:
        builder.add_heading(title.text_frame.text, 1, place)
    for shape in _shapes(slide.shapes):
        if shape.has_text_frame and (title is None or shape.shape_id != title.shape_id):
            builder.add(_text(shape.text_frame), place)
        elif getattr(shape, "has_table", False):
            builder.add_table(([cell.text for cell in row.cells], place) for row in shape.table.rows)
    if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
        notes = slide.notes_slide.notes_text_frame.text
        builder.add(f"Notes: {notes}" if notes.strip() else "", place)


def _shapes(shapes: Any) -> Iterator[Any]:
    """Yield the shapes of a slide. In place of a group, yield the shapes in it."""
    pending = [iter(shapes)]  # an explicit stack, because groups can be nested deeply
    count = 0
    while pending:
        shape = next(pending[-1], None)
        if shape is None:
            pending.pop()
            continue
        count += 1
        if count > _MAX_SHAPES:
            raise ValueError(f"a slide has more than {_MAX_SHAPES:,} shapes")
        if hasattr(shape, "shapes"):
            pending.append(iter(shape.shapes))
        else:
            yield shape


def _text(frame: Any) -> str:
    """Return the paragraphs of a text frame; those below the first level as list items."""
    lines = []
    for paragraph in frame.paragraphs:
        text = paragraph.text.replace("\v", "\n")
        lines.append(f"{'  ' * (paragraph.level - 1)}- {text}" if paragraph.level and text.strip() else text)
    return "\n".join(lines)
