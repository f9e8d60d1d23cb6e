"""Checks of Office files, which are ZIP archives of XML, before their parsers read them."""

from __future__ import annotations

import struct
import zipfile
import zlib
from xml.parsers.expat import ExpatError

from antiphon.retrieval.formats.limits import open_zip

PARSER_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, struct.error, ExpatError, SyntaxError, LookupError, ValueError, TypeError),
    *(AttributeError, AssertionError, ArithmeticError, NotImplementedError, OSError),
)
"""The errors that parsers of Office files raise for damaged ones, because they check little."""

_DOCTYPES = tuple("<!DOCTYPE".encode(encoding) for encoding in ("utf-8", "utf-16-le", "utf-16-be"))
_TITLE = "docProps/core.xml"


def open_office(data: bytes, kind: str, main: str) -> zipfile.ZipFile:
    """Open an Office file after checking its size, its checksums, and that it declares no XML entities.

    Args:
        kind: What the file should be, for the message, such as ``a Word document``.
        main: The name of the part that it needs to have.

    Raises:
        ValueError: It is damaged, encrypted, of another kind, or exceeds the limits.
    """
    archive = open_zip(data, kind)
    names = archive.namelist()
    if main not in names:
        raise ValueError(f"it is not {kind} ({main} is missing)")
    for name in names:
        if name.endswith((".xml", ".rels")):
            _refuse_entities(name, read_part(archive, name))
    return archive


def read_part(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return the bytes of a file in an archive.

    Raises:
        ValueError: It is damaged, or compressed in an unknown way.
    """
    try:
        return archive.read(name)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{name!r} in it is damaged ({error})") from error


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


def _refuse_entities(name: str, xml: bytes) -> None:
    """Refuse XML with a document type, which can declare entities; Office writes none."""
    if any(mark in xml for mark in _DOCTYPES):
        raise ValueError(f"{name!r} in it declares XML entities, which no program of an office does")
