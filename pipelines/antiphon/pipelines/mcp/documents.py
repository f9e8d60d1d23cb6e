"""Documents as MCP resources: their URIs, pages of the list, and their texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from mcp.types import ListResourcesResult, Resource

from antiphon.pipelines.rendering.segments import file_name
from antiphon.pipelines.server.errors import ApiError

if TYPE_CHECKING:
    from antiphon.pipelines.server.collections import Collection

PAGE_SIZE = 100
"""Number of documents in one page of the list."""

MAX_TEXT_LENGTH = 100_000
"""Number of characters of a document after which its text continues in another resource."""

NO_DOCUMENT = "There is no such document; list the resources, or read the URI of a passage."
BAD_CURSOR = "The cursor is not one of this server; list the resources from the beginning."


def document_id(source: str) -> str:
    """Return the id of a document. The id reveals no path."""
    return sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def document_uri(collection: str, source: str) -> str:
    """Return the URI of a document by its source in the index of a collection."""
    return f"antiphon://documents/{quote(collection, safe='')}/{document_id(source)}"


def list_documents(
    collections: Mapping[str, Collection], cursor: Any, shown: Callable[[str], str]
) -> ListResourcesResult:
    """Return one page of the list of documents.

    Args:
        cursor: the number of documents on earlier pages, as text; None: the first page.
        shown: returns the source of a document as the client may see it.

    Raises:
        ApiError: 400, the cursor is not valid.
    """
    start = _number(cursor or 0, BAD_CURSOR)
    documents = sorted(
        (name, shown(source), source, count)
        for name, collection in collections.items()
        for source, count in collection.index.sources().items()
    )
    resources = [
        Resource(
            uri=document_uri(name, source),
            name=file_name(source),
            title=title,
            description=f"Collection {name}, {count} passages",
            mime_type="text/plain",
        )
        for name, title, source, count in documents[start : start + PAGE_SIZE]
    ]
    end = start + PAGE_SIZE
    return ListResourcesResult(resources=resources, next_cursor=str(end) if end < len(documents) else None)


def read_document(collection: Collection, document: str, first: str) -> str:
    """Return the text of a document, or a part of a long document; the part ends with the URI of the next part.

    Text that no passage contains, such as white space, is replaced by a blank line.

    Args:
        first: the number of the first character to return.

    Raises:
        ApiError: 404, the collection has no such document, or the document has no text from
            ``first`` on.
    """
    start, index = _number(first, NO_DOCUMENT), collection.index
    source = next((each for each in index.sources() if document_id(each) == document), "")
    found = map(index.passage, index.ids_of(source))
    passages = [passage for passage in found if passage and passage.end > start]
    if not passages:
        raise ApiError(404, NO_DOCUMENT)
    text, end = "", start
    for passage in sorted(passages, key=lambda passage: passage.start):
        if len(text) >= MAX_TEXT_LENGTH:
            uri = f"{document_uri(collection.name, source)}?start={end}"
            return f"{text}\n\n[The document continues in {uri}]"
        if passage.start > end and text:
            text += "\n\n"
        text += passage.text[max(0, end - passage.start) :]
        end = max(end, passage.end)
    return text


def _number(sent: Any, message: str) -> int:
    text = str(sent)
    if not text.isdecimal() or len(text) > 15:
        raise ApiError(400, message)
    return int(text)
