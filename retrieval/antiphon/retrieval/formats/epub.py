"""Read EPUB books: the chapters in reading order, each with the HTML reader."""

from __future__ import annotations

import posixpath
import zipfile
from typing import Any
from urllib.parse import unquote

from antiphon.retrieval.document import Document
from antiphon.retrieval.formats.document_builder import DocumentBuilder
from antiphon.retrieval.formats.html import read_html_document
from antiphon.retrieval.formats.limits import open_zip
from antiphon.retrieval.formats.office import read_part

_CONTAINER = "META-INF/container.xml"
_PAGES = ("application/xhtml+xml", "text/html")


def read_epub_document(data: bytes, source: str) -> Document:
    """Read a book. The place of a passage is only given by headings. Damaged chapters are reported.

    Raises:
        ValueError: The file is damaged, encrypted, or exceeds the limits.
    """
    archive = open_zip(data, "an EPUB book")
    if _CONTAINER not in archive.namelist():
        raise ValueError(f"it is not an EPUB book ({_CONTAINER} is missing)")
    path = unquote(_first(_parsed(archive, _CONTAINER), "rootfile").get("full-path", ""))
    package = _parsed(archive, path)
    locked = _encrypted(archive)
    builder, warnings = DocumentBuilder(), list[str]()
    for name in _chapters(package, posixpath.dirname(path)):
        try:
            if name in locked:
                raise ValueError("it is encrypted (digital rights management)")
            page = read_html_document(read_part(archive, _member(archive, name)), source)
        except ValueError as error:
            warnings.append(f"its chapter {name!r} was not read: {error}")
            continue
        if page.text.strip():
            builder.add_document(page)
        warnings += page.warnings
    title, authors = _texts(package, "title"), _texts(package, "creator")
    return builder.build(source, {"title": title[0] if title else "", "author": ", ".join(authors)}, warnings)


def _parsed(archive: zipfile.ZipFile, name: str) -> Any:
    """Return the root of an XML file in an archive; a file that declares entities is refused."""
    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import ParseError, fromstring

    try:
        return fromstring(read_part(archive, _member(archive, name)))
    except DefusedXmlException as error:
        raise ValueError(f"{name!r} in it declares XML entities, which no book needs") from error
    except (ParseError, RecursionError, UnicodeError, LookupError) as error:
        raise ValueError(f"{name!r} in it is not readable XML ({error})") from error


def _member(archive: zipfile.ZipFile, name: str) -> str:
    if name not in archive.namelist():
        raise ValueError(f"{name!r} is missing in it")
    return name


def _chapters(package: Any, folder: str) -> list[str]:
    """Return the names of the chapters in reading order."""
    pages = {
        item.get("id"): posixpath.normpath(posixpath.join(folder, unquote(item.get("href", ""))))
        for item in _all(package, "item")
        if item.get("media-type") in _PAGES
    }
    order = [pages[each.get("idref")] for each in _all(package, "itemref") if each.get("idref") in pages]
    return list(dict.fromkeys(order))


def _encrypted(archive: zipfile.ZipFile) -> set[str]:
    name = "META-INF/encryption.xml"
    if name not in archive.namelist():
        return set()
    return {unquote(each.get("URI", "")) for each in _all(_parsed(archive, name), "CipherReference")}


def _all(root: Any, name: str) -> list[Any]:
    """Return all elements with a local name, in any namespace."""
    return list(root.iterfind(f".//{{*}}{name}"))


def _first(root: Any, name: str) -> Any:
    found = _all(root, name)
    if not found:
        raise ValueError(f"it is not an EPUB book (it names no {name})")
    return found[0]


def _texts(root: Any, name: str) -> list[str]:
    return [" ".join(each.text.split()) for each in _all(root, name) if each.text and each.text.strip()]
