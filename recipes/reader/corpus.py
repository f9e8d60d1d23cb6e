"""Passages of the training documents, chunked as in an index, and the choice of held-out pages."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from antiphon.retrieval import Passage, chunk_document, load_documents

_CHARACTERS_PER_TOKEN = 4  # estimate for English prose; the limit of a passage's tokens need not be exact
_HELD_OUT = 8  # of 100 pages
_NAVIGATION = ("Prev Up", "Home Next")


def read_corpus(paths: Sequence[Path]) -> list[Passage]:
    """Load and chunk all documents under ``paths``.

    Raises:
        FileNotFoundError: a path does not exist.
        ValueError: no document was found.
    """
    documents = load_documents(list(paths)).documents
    passages = [passage for document in documents for passage in chunk_document(document, _count_tokens)]
    return [passage for passage in passages if not any(mark in passage.text for mark in _NAVIGATION)]


def is_held_out(passage: Passage) -> bool:
    """Return whether a passage's page is held out (8 of 100 pages), decided by the page's name alone."""
    return int(hashlib.md5(page_name(passage).encode(), usedforsecurity=False).hexdigest(), 16) % 100 < _HELD_OUT


def page_name(passage: Passage) -> str:
    """Return the page of a passage: folder and file name of its source, without the suffix."""
    return "/".join(passage.source.replace("\\", "/").rsplit(".", 1)[0].split("/")[-2:])


def _count_tokens(text: str) -> int:
    return -(-len(text) // _CHARACTERS_PER_TOKEN)
