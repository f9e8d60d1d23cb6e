"""The endpoint /documents: lists, uploads and removes documents of the index.

An uploaded file is stored under a name that the server chooses; the client's file name is only displayed and is never
used as a path.
"""

from __future__ import annotations

import asyncio
import logging
import os
import unicodedata
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Depends, File, Request, UploadFile

from antiphon.pipelines.rendering.sanitize import sanitize_line
from antiphon.pipelines.rendering.segments import file_name
from antiphon.pipelines.server.access_control import Access
from antiphon.pipelines.server.collections import Collection, DocumentIndex
from antiphon.pipelines.server.errors import ERRORS, ApiError
from antiphon.pipelines.server.service import access_of, service_of
from antiphon.retrieval import Document, Embedder, Passage, chunk_document, read_documents
from antiphon.retrieval.chunk import MAX_TOKENS
from antiphon.retrieval.document_changes import UPLOADED
from antiphon.retrieval.formats import SUFFIXES

logger = logging.getLogger("antiphon.server")

MAX_NAME_LENGTH = 120
IN_USE = "Another process is changing the documents of this collection; try again."

router = APIRouter(responses=ERRORS, tags=["Documents"])


def display_name(given: str | None) -> str:
    """Return the file name of an upload for display: one line, without folders, of limited length."""
    last = file_name(unicodedata.normalize("NFC", given or "")).strip()
    name = sanitize_line(last)[-MAX_NAME_LENGTH:]
    return "document" if name in ("", ".", "..") else name


@router.get("/collections")
def list_collections(request: Request, access: Annotated[Access, Depends(access_of)]) -> dict[str, Any]:
    """List the collections that the API key may read, with their numbers of documents."""
    data = [
        {
            "name": name,
            "documents": len(_counts(each)),
            "may_write": each.uploads is not None and access.may_write(name),
        }
        for name, each in service_of(request).readable(access).items()
    ]
    return {"object": "list", "data": data}


@router.get("/documents")
def list_documents(
    request: Request, access: Annotated[Access, Depends(access_of)], collection: str | None = None
) -> dict[str, Any]:
    """List a collection's documents with their numbers of passages; an uploaded archive or mailbox is one document.

    ``folder`` is the folder of a document, relative to the common folder of all documents.
    """
    service = service_of(request)
    if collection is None and not service.readable(access):
        return {"object": "list", "data": [], "read_only": True, "suffixes": list(SUFFIXES)}
    chosen = service.collection(collection, access)
    counts = _counts(chosen)
    folders = _folders([source for source in counts if not source.startswith(UPLOADED)])
    data = [
        {
            "id": _public_id(source),
            "name": file_name(source),
            "folder": folders.get(source, ""),
            "passages": count,
            "uploaded": source.startswith(UPLOADED),
        }
        for source, count in counts.items()
    ]
    is_writable = chosen.uploads is not None and access.may_write(chosen.name)
    return {"object": "list", "data": data, "read_only": not is_writable, "suffixes": list(SUFFIXES)}


def _counts(collection: Collection) -> Counter[str]:
    """Return the number of passages of each document."""
    counts: Counter[str] = Counter()
    for source, count in collection.index.sources().items():
        counts[_uploaded_file(source) or source] += count
    return counts


def _uploaded_file(source: str) -> str:
    """Return the uploaded file that contains a document; empty if the document was not uploaded."""
    return f"{UPLOADED}{source.removeprefix(UPLOADED).partition('/')[0]}" if source.startswith(UPLOADED) else ""


def _folders(sources: Sequence[str]) -> dict[str, str]:
    """Return each source's folder, relative to the common folder; empty if the latter is the root of a file system."""
    parts = {source: source.replace("\\", "/").split("/")[:-1] for source in sources}
    depth = len(os.path.commonprefix(list(parts.values())))  # noqa: RUF071 - of lists, not of characters
    if depth < 2 and any(map(os.path.isabs, sources)):
        return {}
    return {source: "/".join(folders[depth:]) for source, folders in parts.items()}


def passage_ids(index: DocumentIndex, document: str) -> list[str]:
    """Return the ids of the passages of a document, given by its public id."""
    chosen = [each for each in index.sources() if _public_id(_uploaded_file(each) or each) == document]
    return [identifier for each in chosen for identifier in index.ids_of(each)]


def _public_id(source: str) -> str:
    """Return the public id of a document; it reveals no path of this machine."""
    return source if source.startswith(UPLOADED) else f"indexed/{sha256(source.encode()).hexdigest()[:16]}"


def writable_collection(
    request: Request, access: Annotated[Access, Depends(access_of)], collection: str | None = None
) -> Collection:
    """Return the collection whose documents a request changes."""
    return service_of(request).collection(collection, access, write=True)


WritableCollection = Annotated[Collection, Depends(writable_collection)]
"""The parameter of an endpoint that changes a collection."""


@router.post("/documents")
async def upload_document(file: Annotated[UploadFile, File()], chosen: WritableCollection) -> dict[str, Any]:
    """Add a file to a collection; it replaces an uploaded file of the same name.

    An archive, a mailbox or a message with attachments contains several documents. ``skipped``
    lists the contained files that cannot be read, with reasons. ``warnings`` says what is missing
    in files that were read.
    """
    folder, content = _writable_folder(chosen), await file.read()
    return await asyncio.to_thread(_add, chosen, folder, display_name(file.filename), content)


@router.delete("/documents")
async def remove_document(id: str, chosen: WritableCollection) -> dict[str, Any]:
    """Remove an uploaded document from a collection."""
    folder = _writable_folder(chosen)
    if not id.startswith(UPLOADED):
        message = "Only uploaded documents can be removed here; remove others with the command that indexed them."
        raise ApiError(403, message)
    return await asyncio.to_thread(_remove, chosen, folder, id)


def _writable_folder(collection: Collection) -> Path:
    """Return the folder of uploads, or raise an error with status 403."""
    if collection.uploads is None:
        raise ApiError(403, "The documents of this server are read-only: it was started so, or cannot write them.")
    return collection.uploads


def _add(collection: Collection, folder: Path, name: str, content: bytes) -> dict[str, Any]:
    suffix = Path(name).suffix.lower()
    if suffix not in SUFFIXES:
        raise ApiError(400, f"Files of this type are not supported, only {' '.join(SUFFIXES)}.", param="file")
    source = f"{UPLOADED}{name}"
    temporary = folder / f".{uuid4().hex}{suffix}"  # hidden, so no backup copies it
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary.write_bytes(content)
        loaded = read_documents(temporary)
        passages = _passages(loaded.documents, str(temporary), source, collection.retriever.embedder)
        if not passages:  # a file without passages would appear in no list and count for no quota
            raise ValueError("it holds no text")
        with collection.locked():
            _check_quota(collection, folder, source, len(content), len(loaded.documents))
            _replace_passages(collection, source, passages)
            temporary.replace(stored_path(folder, source))
    except ValueError as error:
        reason = str(error).replace(str(temporary), "the file")
        raise ApiError(400, f"The file cannot be read: {reason}", param="file") from error
    except OSError as error:
        raise _write_error(error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    reports = {
        kind: [{"name": each.path.replace(str(temporary), name), "reason": each.reason} for each in files]
        for kind, files in (("skipped", loaded.skipped), ("warnings", loaded.warnings))
    }
    count = len(loaded.documents)
    return {"id": source, "name": name, "documents": count, "passages": len(passages), "uploaded": True, **reports}


def _check_quota(collection: Collection, folder: Path, source: str, size: int, documents: int) -> None:
    """Refuse a file that exceeds the quota of a collection. An earlier file with the same source is not counted."""
    others = [each for each in collection.index.sources() if _uploaded_file(each) not in ("", source)]
    paths = [stored_path(folder, each) for each in {_uploaded_file(each) for each in others}]
    used = sum(path.stat().st_size for path in paths if path.exists())
    quota = collection.quota
    for limit, before, more, unit in (
        (quota.max_bytes, used, size, "bytes of uploaded files"),
        (quota.max_documents, len(others), documents, "uploaded documents"),
    ):
        if limit is not None and before + more > limit:
            message = (
                f"The collection {collection.name!r} may have {limit} {unit}; it has {before} without this file, which "
                f"has {more}. Remove documents, or ask who runs the server for more."
            )
            raise ApiError(413, message, param="file", code="quota_exceeded")


def _passages(documents: Sequence[Document], path: str, source: str, embedder: Embedder) -> list[Passage]:
    """Return the passages of an uploaded file; the sources of its documents begin with the upload's name."""
    max_tokens = min(MAX_TOKENS, embedder.max_tokens)
    named = [replace(each, source=source + each.source.removeprefix(path)) for each in documents]
    return [passage for each in named for passage in chunk_document(each, embedder.count_tokens, max_tokens=max_tokens)]


def stored_path(folder: Path, source: str) -> Path:
    """Return the path of an uploaded file, named by the hash of its source.

    Args:
        source: the source of the document, which begins with `UPLOADED`.
    """
    return folder / f"{sha256(source.encode()).hexdigest()}{Path(source).suffix.lower()}"


def _replace_passages(collection: Collection, source: str, passages: Sequence[Passage]) -> None:
    """Add the passages of a source, then remove the passages of an earlier file of the same name."""
    before = _ids_of(collection.index, source)
    collection.retriever.add(passages)
    if outdated := {*before} - {passage.id for passage in passages}:
        collection.index.remove(sorted(outdated))


def _ids_of(index: DocumentIndex, source: str) -> list[str]:
    """Return the ids of all passages of an uploaded file, including the passages of files in it."""
    own = [each for each in index.sources() if each == source or each.startswith(f"{source}/")]
    return [identifier for each in own for identifier in index.ids_of(each)]


def _remove(collection: Collection, folder: Path, source: str) -> dict[str, Any]:
    index = collection.index
    with collection.locked():
        ids = _ids_of(index, source)
        if not ids:
            raise ApiError(404, "The index has no such document.")
        if len(ids) == len(index):
            raise ApiError(409, "This is the last document, and an index needs at least one. Upload another one first.")
        try:
            index.remove(ids)
            stored_path(folder, source).unlink(missing_ok=True)
        except OSError as error:
            raise _write_error(error) from error
    return {"id": source, "deleted": True}


def _write_error(error: OSError) -> ApiError:
    """Return the error for a folder that cannot be written. The path is logged, but not sent to the client."""
    if isinstance(error, BlockingIOError):
        return ApiError(503, IN_USE, headers={"Retry-After": "5"})
    logger.error("the documents cannot be changed", exc_info=error)
    return ApiError(500, f"The server cannot change its documents: {error.strerror or 'there is no room for them'}.")
