"""Read Word documents (docx): mammoth converts them to HTML, which the HTML reader reads."""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from xml.etree.ElementTree import Element, fromstring, tostring

from antiphon.retrieval.document import Document
from antiphon.retrieval.formats.equations import M, linear
from antiphon.retrieval.formats.html import read_html_body
from antiphon.retrieval.formats.office import (
    PARSER_ERRORS,
    Office,
    drawn,
    drawn_lines,
    open_office,
    title_of,
    with_parts,
)
from antiphon.retrieval.formats.word_numbers import ParagraphNumbers, W

# The title is level 1, so headings are one level lower than in Word. These style names are the same in all languages.
_STYLES = "\n".join(
    ["p[style-name='Title'] => h1:fresh"]
    + [f"p[style-name='heading {level}'] => h{min(level + 1, 6)}:fresh" for level in range(1, 10)]
    + ["br[type='page'] => "]
)
_FIRST_ROW = re.compile(r"(?<=<table>)<tr>((?:(?!<table>|</tr>).)*)</tr>(?=<tr>)", re.DOTALL)
_BACK_LINK = re.compile(r'\s*<a href="#(?:foot|end)note-ref-\d+">↑</a>')
_BODY = "word/document.xml"
_NOTES = ("word/footnotes.xml", "word/endnotes.xml")
_NUMBERING = ("word/numbering.xml", "word/styles.xml")
_RELATIONS = "word/_rels/document.xml.rels"
_REFERENCES = (f"{W}footnoteReference", f"{W}endnoteReference")
_UNKNOWN = "An unrecognised element was ignored: "


def read_word_document(data: bytes, source: str) -> Document:
    """Read a Word document with its headings, lists and their numbers, tables, equations, charts and notes.

    The warnings report what is left out: hidden text, pictures, comments, headers and footers.

    Raises:
        ValueError: The file is damaged, encrypted, or exceeds the limits.
    """
    import mammoth

    office = open_office(data, "a Word document", _BODY)
    warnings = office.warnings
    try:
        plain, hidden = _with_plain_text(office)
        result = mammoth.convert_to_html(
            io.BytesIO(plain), style_map=_STYLES, ignore_empty_paragraphs=True, convert_image=lambda image: []
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except PARSER_ERRORS as error:
        raise ValueError(f"it is not a readable Word document ({type(error).__name__}: {error})") from error
    if hidden:
        warnings.append(f"its hidden text was not read: {hidden} pieces")
    if unknown := sorted({each.message.removeprefix(_UNKNOWN) for each in result.messages if _UNKNOWN in each.message}):
        warnings.append(f"its elements of these kinds were not read: {', '.join(unknown)}")
    html = _FIRST_ROW.sub(_header, _BACK_LINK.sub("", result.value)).replace("<ol>", '<ol class="numbered">')
    document = read_html_body(html, source)
    title = title_of(office.archive)
    return replace(document, metadata={"title": title} if title else {}, code=(), warnings=tuple(warnings))


def _with_plain_text(office: Office) -> tuple[bytes, int]:
    """Return the file with numbers, equations and charts as text, and the number of hidden runs of text."""
    with zipfile.ZipFile(io.BytesIO(office.data)) as archive:
        names = {*archive.namelist()}
        parsed = {name: fromstring(archive.read(name)) for name in (_BODY, *_NOTES) if name in names}
        properties = (fromstring(archive.read(name)) if name in names else None for name in _NUMBERING)
        numbers, charts = ParagraphNumbers(*properties), dict(_charts(archive, names))
        notes = {(f"{each.tag}Reference", each.get(f"{W}id")) for name in _NOTES for each in parsed.get(name, ())}
        hidden = sum(_rewrite(root, numbers, charts, notes) for root in parsed.values())
        return with_parts(archive, {name: tostring(root) for name, root in parsed.items()}), hidden


def _charts(archive: zipfile.ZipFile, names: Collection[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield, for each chart and diagram of a document, the id of its relationship and its lines."""
    for each in fromstring(archive.read(_RELATIONS)) if _RELATIONS in names else ():
        target = posixpath.normpath(posixpath.join("/word", each.get("Target", ""))).lstrip("/")
        if each.get("Type", "").endswith(("/chart", "/diagramData")) and target in names:
            yield each.get("Id", ""), drawn_lines(archive.read(target))


def _rewrite(
    root: Any, numbers: ParagraphNumbers, charts: Mapping[str, Sequence[str]], notes: Collection[tuple[str, str | None]]
) -> int:
    """Put numbers, equations and charts into runs of text; remove and count hidden runs.

    Args:
        notes: The tag and the id of the references to notes that exist; the other references are removed.
    """
    hidden = 0
    for field in root.iter(f"{W}fldSimple"):
        field.tag = f"{W}smartTag"  # mammoth reads the content
    for parent in [*root.iter()]:
        for place, child in reversed([*enumerate(parent)]):
            is_run, is_paragraph = child.tag == f"{W}r", child.tag == f"{W}p"
            if is_run and numbers.is_hidden(child, "r"):
                parent.remove(child)
                hidden += 1
            elif child.tag in (f"{M}oMath", f"{M}oMathPara"):
                parent[place] = _run(linear(child))
            elif is_paragraph and numbers.is_hidden(child, "p"):
                parent.remove(child)
                hidden += 1
            elif child.tag in _REFERENCES and (child.tag, child.get(f"{W}id")) not in notes:
                parent.remove(child)
            elif is_paragraph:
                lines = [line for name in drawn(child) for line in charts.get(name, ())]
                parent[place + 1 : place + 1] = [_element("p", _run(line)) for line in lines]
    for paragraph in root.iter(f"{W}p"):
        if (label := numbers.label(paragraph)) and any(text.text for text in paragraph.iter(f"{W}t")):
            paragraph.insert(int(paragraph[0].tag == f"{W}pPr"), _run(f"{label} "))
    return hidden


def _run(text: str) -> Any:
    run = _element("r", _element("t"))
    run[0].text = text
    return run


def _element(name: str, *children: Any) -> Any:
    element = Element(f"{W}{name}")
    element.extend(children)
    return element


def _header(row: re.Match[str]) -> str:
    """Mark the first row of a table as the header, because most documents do not."""
    return f"<thead><tr>{row[1].replace('<td', '<th').replace('</td>', '</th>')}</tr></thead>"
