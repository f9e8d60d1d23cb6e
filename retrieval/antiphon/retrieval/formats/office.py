"""Check Office files (ZIP archives of XML) before they are parsed, and read their charts."""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from xml.parsers.expat import ExpatError, ParserCreate

from antiphon.retrieval.formats.limits import open_zip
from antiphon.retrieval.formats.number_format import shown

PARSER_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, struct.error, ExpatError, SyntaxError, LookupError, ValueError, TypeError),
    *(AttributeError, AssertionError, ArithmeticError, NotImplementedError, OSError),
)
"""The errors that parsers of Office files raise for damaged files; the parsers check little."""

_DOCTYPES = tuple("<!DOCTYPE".encode(encoding) for encoding in ("utf-8", "utf-16-le", "utf-16-be"))
_TITLE = "docProps/core.xml"
_TEXT = "{http://schemas.openxmlformats.org/drawingml/2006/main}t"
_BLANK_SLIDE = (
    b'<p:sld xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"><p:cSld><p:spTree><p:nvGrpSpPr/>'
    b"<p:grpSpPr/></p:spTree></p:cSld></p:sld>"
)
_LEFT_OUT = (
    ("pictures", re.compile(r"\w+/media/.*\.(?:bmp|emf|gif|jpe?g|png|svg|tiff?|webp|wmf)", re.IGNORECASE), b""),
    ("recordings", re.compile(r"\w+/media/.*\.(?:avi|m4a|m4v|mov|mp3|mp4|mpe?g|wav|wm[av])", re.IGNORECASE), b""),
    ("parts with comments", re.compile(r"(?:word|ppt|xl)/(?:comments?|threadedComments)[/\w]*\.xml"), b""),
    ("headers and footers", re.compile(r"word/(?:header|footer)\d*\.xml"), b"<w:t"),
    ("charts", re.compile(r"xl/charts/chart\d*\.xml"), b""),
    ("drawings with text", re.compile(r"xl/(?:drawings|diagrams)/(?:drawing|data)\d*\.xml"), b"<a:t>"),
    ("embedded files", re.compile(r"\w+/embeddings/(?!Microsoft_Excel_(?:Work)?[Ss]heet).+"), b""),
)
"""For each kind of part that is not read: a description, a name pattern, and required bytes."""


@dataclass(frozen=True, slots=True)
class Office:
    """An Office file that was checked.

    Attributes:
        data: The bytes of the file without damaged parts, for the parser.
        damaged: The names of the damaged parts.
    """

    archive: zipfile.ZipFile
    data: bytes
    damaged: tuple[str, ...]

    @property
    def warnings(self) -> list[str]:
        """Warnings about omitted content: damaged parts, and parts that are never read."""
        found = [f"its part {name} is damaged and was not read" for name in self.damaged]
        names = [name for name in self.archive.namelist() if name not in self.damaged]
        for kind, pattern, mark in _LEFT_OUT:
            if count := sum(bool(pattern.fullmatch(name)) and mark in self.archive.read(name) for name in names):
                found.append(f"its {kind} were not read: {count}")
        return found


def open_office(data: bytes, kind: str, main: str) -> Office:
    """Open an Office file after checking its size, its parts, and the absence of XML entities.

    Args:
        kind: What the file should be, for the message, such as ``a Word document``.
        main: The name of the part that the file must have.

    Raises:
        ValueError: The file is encrypted, is of another kind, exceeds the limits or declares XML
            entities, or its main part is damaged.
    """
    archive, damaged = open_zip(data, kind), list[str]()
    if main not in archive.namelist():
        raise ValueError(f"it is not {kind} ({main} is missing)")
    for name in archive.namelist():
        try:
            part = read_part(archive, name)
            if name.endswith((".xml", ".rels")):
                if any(mark in part for mark in _DOCTYPES):  # Office never writes a document type
                    raise ValueError(f"{name!r} in it declares XML entities, which no program of an office does")
                if not name.startswith((main, "xl/worksheets/")):  # the text before the damage is read
                    ParserCreate().Parse(part, True)
        except (_DamagedError, ExpatError):
            if name == main:
                raise
            damaged.append(name)
    return Office(archive, with_parts(archive, dict.fromkeys(damaged, b"")) if damaged else data, tuple(damaged))


def with_parts(archive: zipfile.ZipFile, parts: Mapping[str, bytes]) -> bytes:
    """Return an archive in which the given parts have new contents.

    A part with empty content is removed. A slide with empty content becomes a blank slide.
    """
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as copy:
        for name in archive.namelist():
            blank = _BLANK_SLIDE if name.startswith("ppt/slides/slide") else b""
            content = (parts[name] or blank) if name in parts else read_part(archive, name)
            if content or name not in parts:
                copy.writestr(name, content)
    return out.getvalue()


class _DamagedError(ValueError):
    """A part cannot be unpacked."""


def read_part(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return the bytes of a file in an archive.

    Raises:
        ValueError: The file is damaged, or compressed by an unknown method.
    """
    try:
        return archive.read(name)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise _DamagedError(f"{name!r} in it is damaged ({error})") from error


def drawn(element: Any) -> Iterator[str]:
    """For each chart and SmartArt diagram in an element, yield the name of the relationship that points to its file."""
    for each in element.iter():
        if str(each.tag).endswith(("/chart}chart", "/diagram}relIds")):
            yield from (value for name, value in each.attrib.items() if name.endswith(("}id", "}dm")))


def drawn_lines(xml: bytes) -> list[str]:
    """Return the text of a chart or of SmartArt, as lines.

    The lines of a chart are its title, and for each category a line with its values.
    """
    from defusedxml.ElementTree import fromstring

    root = fromstring(xml)
    texts = [*root.iterfind("{*}chart/{*}title"), *root.iterfind("{*}ptLst/{*}pt")]
    lines = ["".join(text.text or "" for text in element.iter(_TEXT)) for element in texts]
    categories = defaultdict[str, list[str]](list)
    for series in root.iterfind(".//{*}ser"):
        name, keys, values = (_points(series, *parts) for parts in (("tx",), ("cat", "xVal"), ("val", "yVal")))
        for place, value in values.items():
            named = f"{name['0']}: {value}" if "0" in name else value
            categories[place] += [named] if categories[place] else [keys.get(place, ""), named]
    return [line for line in [*lines, *("; ".join(filter(None, each)) for each in categories.values())] if line]


def _points(series: Any, *parts: str) -> dict[str, str]:
    """Return the values in these ``parts`` of a chart's series by their indices, formatted as in the chart."""
    points = dict[str, str]()
    for found in (each for part in parts for each in series.iterfind(f"{{*}}{part}")):
        code = found.findtext(".//{*}formatCode")
        for point in found.iterfind(".//{*}pt"):  # the innermost of several levels comes first
            text = point.findtext("{*}v") or ""
            points.setdefault(point.get("idx", "0"), shown(float(text), code) if code and text else text)
    return points


def title_of(archive: zipfile.ZipFile) -> str:
    """Return the title in the properties of an Office file, or an empty string."""
    from defusedxml.ElementTree import fromstring

    if _TITLE not in archive.namelist():
        return ""
    try:
        root = fromstring(read_part(archive, _TITLE))
    except (ValueError, SyntaxError):
        return ""
    title = root.findtext("{http://purl.org/dc/elements/1.1/}title") or ""
    return " ".join(title.split())
