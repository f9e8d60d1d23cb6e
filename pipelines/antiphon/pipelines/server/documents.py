"""/documents: files into the index, listed and taken out again. What a file is called is never a path.

An uploaded file is kept under a name of the server's own; the name that it came with is only shown.
"""

from __future__ import annotations

import asyncio
import logging
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Depends, File, Request, UploadFile

from antiphon.pipelines.rendering.visible import visible_line
from antiphon.pipelines.server.chat import ERRORS
from antiphon.pipelines.server.errors import ApiError
from antiphon.pipelines.server.figures import source_name
from antiphon.pipelines.server.service import Service, key_of, service_of
from antiphon.retrieval import LocalIndex, Passage, Retriever, chunk_document, read_document
from antiphon.retrieval.chunk import MAX_TOKENS
from antiphon.retrieval.load import SUFFIXES

logger = logging.getLogger("antiphon.server")

LONGEST_NAME = 120
UPLOADED = "uploaded/"
"""What the sources of uploaded documents begin with: no path, a name."""

router = APIRouter(responses=ERRORS, tags=["Documents"])


def retriever_of(service: Service) -> Retriever | None:
    """The retriever of the model that answers from documents, if there is one whose index can be looked into."""
    rags = [served.rag for served in service.models.values() if served.rag is not None]
    found = rags[0].retriever if rags else None
    return found if isinstance(found, Retriever) else None


def index_of(service: Service) -> LocalIndex | None:
    """The index of the model that answers from documents, if it is a folder."""
    retriever = retriever_of(service)
    return retriever.index if retriever is not None and isinstance(retriever.index, LocalIndex) else None


def shown_name(given: str | None) -> str:
    """The name of an uploaded file as it is shown: one line, without folders, not too long."""
    last = source_name(unicodedata.normalize("NFC", given or "")).strip()
    name = visible_line(last)[-LONGEST_NAME:]
    return "document" if name in ("", ".", "..") else name


@router.get("/documents")
def list_documents(request: Request, _: Annotated[str, Depends(key_of)]) -> dict[str, Any]:
    """The documents of the index, and how many passages each has."""
    service = service_of(request)
    index = index_of(service)
    sources = {} if index is None else index.sources()
    data = [
        {
            "id": _shown_id(source),
            "name": source_name(source),
            "passages": count,
            "uploaded": source.startswith(UPLOADED),
        }
        for source, count in sources.items()
    ]
    can_change = index is not None and service.uploads is not None
    return {"object": "list", "data": data, "read_only": not can_change, "suffixes": list(SUFFIXES)}


def _shown_id(source: str) -> str:
    """What clients call a document: an uploaded one by its source, others not by where they lie on this machine."""
    return source if source.startswith(UPLOADED) else f"indexed/{sha256(source.encode()).hexdigest()[:16]}"


@router.post("/documents")
async def upload_document(
    request: Request, file: Annotated[UploadFile, File()], _: Annotated[str, Depends(key_of)]
) -> dict[str, Any]:
    """Put a file into the index; an uploaded one of the same name is replaced."""
    service = service_of(request)
    retriever, folder = _changeable(service)
    content = await file.read()
    return await asyncio.to_thread(_put, service, retriever, folder, shown_name(file.filename), content)


@router.delete("/documents")
async def remove_document(id: str, request: Request, _: Annotated[str, Depends(key_of)]) -> dict[str, Any]:
    """Take an uploaded document out of the index."""
    service = service_of(request)
    retriever, folder = _changeable(service)
    if not id.startswith(UPLOADED):
        raise ApiError(403, "Only uploaded documents can be removed here; others are removed where they were indexed.")
    return await asyncio.to_thread(_remove, service, retriever, folder, id)


def _changeable(service: Service) -> tuple[Retriever, Path]:
    retriever = retriever_of(service)
    if retriever is None or index_of(service) is None:
        raise ApiError(404, "This server has no index that takes documents; start it with --index FOLDER.")
    if service.uploads is None:
        raise ApiError(403, "This server only reads its documents: it was started so, or may not write their folder.")
    return retriever, service.uploads


def _put(service: Service, retriever: Retriever, folder: Path, name: str, content: bytes) -> dict[str, Any]:
    suffix = Path(name).suffix.lower()
    if suffix not in SUFFIXES:
        raise ApiError(400, f"Files of this kind are not read; only {' '.join(SUFFIXES)}.", param="file")
    source = f"{UPLOADED}{name}"
    beside = folder / f"{uuid4().hex}{suffix}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside.write_bytes(content)
        document = replace(read_document(beside), source=source)
        passages = chunk_document(document, retriever.embedder.count_tokens, max_tokens=_limit(retriever))
        with service.changing:
            _exchange(retriever, source, passages)
            beside.replace(_place(folder, source))
    except ValueError as error:
        said = str(error).replace(str(beside), "the file")
        raise ApiError(400, f"The file cannot be read: {said}", param="file") from error
    except OSError as error:
        raise _unkept(error) from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
    return {"id": source, "name": name, "passages": len(passages), "uploaded": True}


def _place(folder: Path, source: str) -> Path:
    """Where an uploaded file is kept: under the hash of its source."""
    return folder / f"{sha256(source.encode()).hexdigest()}{Path(source).suffix.lower()}"


def _limit(retriever: Retriever) -> int:
    return min(MAX_TOKENS, retriever.embedder.max_tokens)


def _exchange(retriever: Retriever, source: str, passages: Sequence[Passage]) -> None:
    """Put the passages of a source in, and take out what an earlier file of that name had besides."""
    index = retriever.index
    before = set(index.ids_of(source)) if isinstance(index, LocalIndex) else set()
    retriever.add(passages)
    if left := before - {passage.id for passage in passages}:
        retriever.remove(sorted(left))


def _remove(service: Service, retriever: Retriever, folder: Path, source: str) -> dict[str, Any]:
    index = index_of(service)
    with service.changing:
        ids = [] if index is None else index.ids_of(source)
        if not ids:
            raise ApiError(404, "There is no such document in the index.")
        if index is not None and len(ids) == len(index):
            raise ApiError(409, "It is the last document; an index holds one at least. Upload another one first.")
        try:
            retriever.remove(ids)
            _place(folder, source).unlink(missing_ok=True)
        except OSError as error:
            raise _unkept(error) from error
    return {"id": source, "deleted": True}


def _unkept(error: OSError) -> ApiError:
    """The error of a folder that cannot be written; where it is stands in the log alone."""
    logger.error("the documents cannot be changed", exc_info=error)
    return ApiError(500, f"The server cannot change its documents: {error.strerror or 'there is no room for them'}.")
