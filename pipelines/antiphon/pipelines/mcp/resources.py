"""Documents as resources: their URIs, pages of the list, and their texts."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from urllib.parse import quote, unquote

from antiphon.pipelines.server.access_control import Access
from antiphon.pipelines.server.collections import Collection, DocumentIndex
from antiphon.pipelines.server.errors import ApiError
from antiphon.pipelines.server.response_fields import file_name
from antiphon.pipelines.server.service import Service
from antiphon.retrieval import Passage

PAGE_SIZE = 100
"""Number of documents in one page of the list."""

MAX_TEXT_LENGTH = 100_000
"""Number of characters of a document after which its text continues in another resource."""

NO_DOCUMENT = "There is no such document; list the resources, or read the URI in a passage that read_passage returned."
BAD_CURSOR = "The cursor is not one of this server; list the resources from the beginning."

_URI = re.compile(r"antiphon://documents/([^/?#]{1,600})/([0-9a-f]{16})(?:\?start=(\d{1,12}))?")


@dataclass(frozen=True, slots=True, order=True)
class DocumentEntry:
    """A document in the list; the order of the fields is the order of the list.

    Attributes:
        collection: the name of its collection.
        title: its source as the client may see it.
        id: a digest of its source, which reveals no path.
        passages: the number of its passages.
    """

    collection: str
    title: str
    id: str
    passages: int

    @property
    def name(self) -> str:
        """The name of the file."""
        return file_name(self.title)

    @property
    def uri(self) -> str:
        """The URI of the document."""
        return _uri(self.collection, self.id)

    @property
    def cursor(self) -> str:
        """The cursor of the page after this document."""
        return base64.urlsafe_b64encode(json.dumps([self.collection, self.title, self.id]).encode()).decode()


def document_uri(collection: str, source: str) -> str:
    """Return the URI of a document.

    Args:
        collection: the name of its collection.
        source: its source in the index.
    """
    return _uri(collection, _document_id(source))


def display_source(source: str, *, is_local: bool) -> str:
    """Return the source of a document as the client may see it: without folders, unless the client is local.

    Args:
        source: the source in the index.
        is_local: the client is a program of this machine's user.
    """
    return source if is_local else file_name(source)


def list_documents(
    collections: Mapping[str, Collection], cursor: str | None, is_local: bool
) -> tuple[list[DocumentEntry], str | None]:
    """Return a page of the documents of collections, and the cursor of the next page, or None.

    Args:
        collections: the collections that the client may read.
        cursor: the cursor of the page; None: the first page.
        is_local: the client is a program of this machine's user.

    Raises:
        ApiError: 400, the cursor is not valid.
    """
    after = None if cursor is None else _read_cursor(cursor)
    entries = sorted(
        DocumentEntry(name, display_source(source, is_local=is_local), _document_id(source), passages)
        for name, collection in collections.items()
        for source, passages in ({} if collection.index is None else collection.index.sources()).items()
    )
    rest = (each for each in entries if after is None or (each.collection, each.title, each.id) > after)
    page = list(islice(rest, PAGE_SIZE + 1))
    return page[:PAGE_SIZE], page[PAGE_SIZE - 1].cursor if len(page) > PAGE_SIZE else None


def read_document(service: Service, access: Access, uri: str) -> tuple[str, str | None]:
    """Return the text of a document's passages, and the URI of its next part if it is long, else None.

    Text between two passages that is in no passage, such as white space, is a blank line.

    Args:
        service: the service.
        access: the rights of the client's key.
        uri: the URI of the document, or of a part of it.

    Raises:
        ApiError: 404, there is no such document, or the client may not read it, or it has no text from there on.
    """
    match = _URI.fullmatch(uri)
    if match is None:
        raise ApiError(404, NO_DOCUMENT)
    name, identifier, start = unquote(match[1]), match[2], int(match[3] or 0)
    index = service.collection(name, access).index
    source = None if index is None else _source_of(index, identifier)
    if index is None or source is None:
        raise ApiError(404, NO_DOCUMENT)
    found = (index.passage(each) for each in index.ids_of(source))
    passages = sorted((each for each in found if each is not None and each.end > start), key=lambda each: each.start)
    if not passages:
        raise ApiError(404, NO_DOCUMENT)
    text, end = _joined(passages, start)
    if end is None:
        return text, None
    following = f"{_uri(name, identifier)}?start={end}"
    return f"{text}\n\n[The document continues in {following}]", following


def _joined(passages: Iterable[Passage], start: int) -> tuple[str, int | None]:
    """Return the text of passages, without what two of them share, and where the text continues, or None."""
    parts: list[str] = []
    end, length = start, 0
    for passage in passages:
        if length >= MAX_TEXT_LENGTH:
            return "".join(parts), end
        if passage.start > end and parts:
            parts.append("\n\n")
        text = passage.text[max(0, end - passage.start) :]
        parts.append(text)
        end, length = max(end, passage.end), length + len(text)
    return "".join(parts), None


def _uri(collection: str, identifier: str) -> str:
    return f"antiphon://documents/{quote(collection, safe='')}/{identifier}"


def _document_id(source: str) -> str:
    return sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _source_of(index: DocumentIndex, identifier: str) -> str | None:
    return next((source for source in index.sources() if _document_id(source) == identifier), None)


def _read_cursor(cursor: str) -> tuple[str, str, str]:
    """Return the collection, the title and the id of the last document of the page before."""
    try:
        collection, title, identifier = json.loads(base64.urlsafe_b64decode(cursor.encode()))
    except (ValueError, TypeError, RecursionError) as error:
        raise ApiError(400, BAD_CURSOR, param="cursor") from error
    if not all(isinstance(each, str) for each in (collection, title, identifier)):
        raise ApiError(400, BAD_CURSOR, param="cursor")
    return collection, title, identifier
