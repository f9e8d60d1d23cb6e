"""Corpus: the documents that a reader is taught on, cut as an index cuts them, and the pages kept apart for a test."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from antiphon.retrieval import Passage, chunk_document, load_documents

_CHARACTERS_PER_TOKEN = 4  # of English prose; the passages need not be cut for one tokenizer
_HELD_OUT = 8  # of 100 pages
_NAVIGATION = ("Prev Up", "Home Next")


def read_corpus(paths: Sequence[Path]) -> list[Passage]:
    """The passages of all documents under ``paths``.

    Raises:
        FileNotFoundError: a path is not there.
        ValueError: no document was found.
    """
    documents = load_documents(list(paths)).documents
    passages = [passage for document in documents for passage in chunk_document(document, _count_tokens)]
    return [passage for passage in passages if not any(mark in passage.text for mark in _NAVIGATION)]


def is_held_out(passage: Passage) -> bool:
    """Whether a passage's page is one of the 8 in 100 that no training sees; decided by its name alone."""
    return int(hashlib.md5(page_name(passage).encode(), usedforsecurity=False).hexdigest(), 16) % 100 < _HELD_OUT


def page_name(passage: Passage) -> str:
    """Folder and file of a passage's source, without its ending: what tells one page of a corpus from another."""
    return "/".join(passage.source.replace("\\", "/").rsplit(".", 1)[0].split("/")[-2:])


def _count_tokens(text: str) -> int:
    return -(-len(text) // _CHARACTERS_PER_TOKEN)
