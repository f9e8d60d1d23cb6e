"""Endpoints that show documents: a passage with its neighbours, its pages in a PDF file, all passages of a document.

A client chooses a passage, never a path. The passage's file is an upload, or the source named in the index.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, pairwise
from pathlib import Path
from threading import BoundedSemaphore
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from antiphon.pipelines.rendering.segments import file_name, place_of
from antiphon.pipelines.server.collections import Collection, DocumentIndex
from antiphon.pipelines.server.documents import passage_ids, stored_path
from antiphon.pipelines.server.errors import ERRORS, ApiError
from antiphon.pipelines.server.response_fields import passage_object
from antiphon.pipelines.server.retrieval import NO_PASSAGE
from antiphon.pipelines.server.service import ChosenCollection
from antiphon.retrieval import Passage
from antiphon.retrieval.document_changes import UPLOADED
from antiphon.retrieval.formats.pdf_pages import draw_page, find_on_page
from antiphon.retrieval.source_file import SourceFile

MAX_NEIGHBOURS = 50
"""Maximum number of passages before and after the requested passage, and in a response of `document_passages`."""

MAX_QUESTIONS = 4
"""Maximum number of example questions."""

MAX_HEADINGS = 8
"""Approximate number of passages of a document that are read for an example question."""

MAX_PAGES = 10
"""Maximum number of pages that are listed for a passage: if pages have few words, a passage may have hundreds."""

NO_PAGE = "There is no image of this page: the passage is not from a PDF file, or the server does not have the file."

_PDF_FILES = BoundedSemaphore(2)  # maximum number of PDF files in memory, because indexed files may be large

router = APIRouter(responses=ERRORS, tags=["Retrieval"])


def passage_of(identifier: str, chosen: ChosenCollection) -> Passage:
    """Return the passage that a request names."""
    passage = chosen.index.passage(identifier)
    if passage is None:
        raise ApiError(404, NO_PASSAGE)
    return passage


ChosenPassage = Annotated[Passage, Depends(passage_of)]
"""The parameter of an endpoint that shows a passage."""


@router.get("/passages/{identifier}/context")
def passage_context(
    chosen: ChosenCollection, passage: ChosenPassage, around: Annotated[int, Query(ge=0, le=MAX_NEIGHBOURS)] = 2
) -> dict[str, Any]:
    """Return a passage and its neighbours in the document.

    ``before`` and ``after`` are the numbers of passages before and after the returned ones.
    """
    index = chosen.index
    ids = index.ids_of(passage.source)
    if passage.id not in ids:  # it was removed meanwhile
        raise ApiError(404, NO_PASSAGE)
    place = ids.index(passage.id)
    first, end = max(place - around, 0), place + around + 1
    found = [each for each in map(index.passage, ids[first:end]) if each is not None]
    return {
        "document": file_name(passage.source),
        "passages": [passage_object(each) for each in sorted(found, key=lambda each: each.start)],
        "before": first,
        "after": max(len(ids) - end, 0),
    }


@router.get("/documents/passages")
def document_passages(id: str, chosen: ChosenCollection, start: Annotated[int, Query(ge=0)] = 0) -> dict[str, Any]:
    """Return the passages of a document in the document's order, at most 50, with the numbers of their pages.

    ``next`` is the value of ``start`` for the next 50 passages; null if these are the last ones.
    """
    index = chosen.index
    ids = passage_ids(index, id)
    if not ids:
        raise ApiError(404, "The index has no such document.")
    end = start + MAX_NEIGHBOURS
    found = [each for each in map(index.passage, ids[start:end]) if each is not None]
    passages = [{**passage_object(each), "pages": [page for page, _ in parts_by_page(each)]} for each in found]
    return {"object": "list", "data": passages, "next": end if end < len(ids) else None}


@router.get("/documents/questions")
def example_questions(chosen: ChosenCollection) -> dict[str, Any]:
    """Return a few example questions, made from headings of the documents without a model."""
    index = chosen.index
    sources = list(index.sources())
    some = sources[:: len(sources) // (3 * MAX_QUESTIONS) or 1][: 3 * MAX_QUESTIONS]
    best = sorted((_heading(index, each) for each in some), key=lambda heading: not heading.endswith("?"))
    asked = [each if each.endswith("?") else f"What do the documents say about “{each}”?" for each in best if each]
    return {"object": "list", "data": list(dict.fromkeys(asked))[:MAX_QUESTIONS]}


def _heading(index: DocumentIndex, source: str) -> str:
    """Return a heading of a document, preferably a question or a section's heading; empty if there is no heading."""
    ids = index.ids_of(source)
    found = map(index.passage, ids[:: len(ids) // MAX_HEADINGS or 1])
    titles = [str(each.metadata.get("title", "")) for each in found if each]
    best = max(titles, key=lambda title: (title.endswith("?"), " > " in title, bool(title)), default="")
    return place_of("", best.rpartition(" > ")[2])


@router.get("/passages/{identifier}/pages")
def passage_pages(
    chosen: ChosenCollection,
    passage: ChosenPassage,
    start: Annotated[int, Query(ge=0)] = 0,
    end: Annotated[int | None, Query(ge=0)] = None,
) -> dict[str, Any]:
    """Return the pages that show the characters ``start`` to ``end`` of a passage, with the boxes of these characters.

    At most the first ten pages are returned. A box consists of left, top, right and bottom, as
    fractions of the page's size.
    """
    parts = islice(parts_by_page(passage, start, end), MAX_PAGES)
    with _pdf_file(chosen, passage) as data:
        pages = [{"page": number, "boxes": find_on_page(data, number, text)} for number, text in parts]
    if not passage.source.startswith(UPLOADED) and not any(page["boxes"] for page in pages):
        raise ApiError(404, NO_PAGE)  # the file was replaced after it was indexed
    return {"object": "list", "data": pages}


@router.get("/passages/{identifier}/page.png", response_class=Response)
def passage_page_image(chosen: ChosenCollection, passage: ChosenPassage, page: int) -> Response:
    """Return the image of a page that shows the passage."""
    parts = dict(parts_by_page(passage))
    if page not in parts:
        raise ApiError(404, NO_PAGE)
    first = islice(parts.items(), MAX_PAGES)
    with _pdf_file(chosen, passage) as data:
        if not passage.source.startswith(UPLOADED) and not any(find_on_page(data, *part) for part in first):
            raise ApiError(404, NO_PAGE)  # the file was replaced after it was indexed
        image = draw_page(data, page)
    return Response(image, media_type="image/png", headers={"Cache-Control": "private, no-store"})


def parts_by_page(passage: Passage, start: int = 0, end: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield, for each page that contains text of a part of a passage, the page number and this text.

    Args:
        start: the first character of the part in the passage.
        end: the character after the last character of the part; None: the end of the passage.
    """
    number = str(passage.metadata.get("page") or "").partition("-")[0]
    breaks = passage.metadata.get("page_starts")
    if not number.isdecimal():
        return
    inner = [at - passage.start for at in breaks if isinstance(at, int)] if isinstance(breaks, (list, tuple)) else []
    bounds = [0, *inner, len(passage.text)]
    for page, (first, last) in enumerate(pairwise(bounds), start=int(number)):
        text = passage.text[max(first, start) : last if end is None else min(last, end)]
        if text.strip():
            yield page, text


@contextmanager
def _pdf_file(collection: Collection, passage: Passage) -> Iterator[bytes]:
    """Yield the PDF file of a passage. If reading it or the ``with`` block fails, raise an error with status 404."""
    file = SourceFile.of(passage.metadata)
    path = Path(file.path if file else passage.source)
    if passage.source.startswith(UPLOADED):
        path = stored_path(collection.uploads, passage.source) if collection.uploads else Path()
    try:
        if path.suffix.lower() != ".pdf" or not path.is_file():
            raise ApiError(404, NO_PAGE)
        with _PDF_FILES:
            yield path.read_bytes()
    except (OSError, ValueError) as error:
        raise ApiError(404, NO_PAGE) from error
