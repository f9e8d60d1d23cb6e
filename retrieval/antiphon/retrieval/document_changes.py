"""Decide which documents of an index are kept and which are dropped when files are indexed into the index."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from antiphon.retrieval.document import Document
from antiphon.retrieval.errors import WouldDropDocuments
from antiphon.retrieval.formats.document_builder import listed
from antiphon.retrieval.source_file import SourceFile, normalized_name

UPLOADED = "uploaded/"
"""The prefix of the sources of uploaded documents; such sources are names, not paths."""

Confirm = Callable[[Sequence[str]], bool]
"""Called with the sources of the documents that a change would drop. Returns whether to go on."""


StoredDocuments = Mapping[str, tuple[int, SourceFile | None]]
"""Maps each document's source to its number of passages and its file (None if unknown)."""


@dataclass(frozen=True, slots=True)
class DocumentChange:
    """The documents that are indexed, kept and dropped when files are indexed into an index.

    Attributes:
        documents: The documents to index; no two of them have the same source.
        kept: The sources of the documents that stay as they are.
        dropped: The sources of the documents that are dropped.
    """

    documents: tuple[Document, ...]
    kept: frozenset[str] = frozenset()
    dropped: tuple[str, ...] = ()


def plan_change(
    location: str,
    before: StoredDocuments,
    documents: Sequence[Document],
    paths: Sequence[str | Path],
    *,
    add: bool,
    confirm: Confirm | None = None,
) -> DocumentChange:
    """Decide which documents of an index are kept when files are indexed into the index.

    A document whose file is indexed again is replaced. Uploaded documents stay. Other documents
    stay if ``add`` is set and they are not below ``paths``. If a document of another file already
    has the source of a new document, the new document gets its file's absolute path as its source.

    Args:
        add: Whether the documents are added to the index, instead of replacing its content.
        confirm: Called if documents would be dropped. None: drop them.

    Raises:
        WouldDropDocuments: ``confirm`` returned False.
    """
    replaced = {name for each in documents for name in _names(each.source, each.file)}
    places = [real_path(path) for path in paths]
    kept, dropped = set(), []
    for source, (_, file) in before.items():
        is_replaced = not replaced.isdisjoint(_names(source, file))
        if source.startswith(UPLOADED) or (add and not is_replaced and not is_below(source, places, file)):
            kept.add(source)
        elif not is_replaced:
            dropped.append(source)
    if dropped and confirm is not None and not confirm(dropped):
        raise WouldDropDocuments(
            f"This would drop {len(dropped)} of the {len(before)} documents in {location}: {listed(dropped, 3)}. To "
            "keep them, add to the index (--add); to drop them, confirm (--yes). Nothing was changed."
        )
    taken, new = {*kept}, list[Document]()
    for document in documents:
        if document.file is not None and document.source in taken:  # another document has the same source
            document = replace(document, source=_absolute(document.source, document.file))
        new.append(document)
        taken.add(document.source)
    return DocumentChange(tuple(new), frozenset(kept), tuple(dropped))


def is_below(source: str, places: Sequence[str], file: SourceFile | None = None) -> bool:
    """Return whether a document's path is one of the places, or below one of the places.

    Args:
        places: Paths of files and folders, as `real_path` returns them.
        file: The file of the document. None: the source is the document's path.
    """
    path = _names(source, file)[0]
    return any(path == place or path.startswith(place.rstrip(os.sep) + os.sep) for place in places)


def _names(source: str, file: SourceFile | None) -> tuple[str, ...]:
    """Return the absolute path of a document's file, with and without symbolic links resolved.

    Two documents are the same if they have one of these paths in common.
    """
    return (real_path(source),) if file is None else (normalized_name(file.path), _absolute(source, file))


def _absolute(source: str, file: SourceFile) -> str:
    return os.path.normpath(Path(file.base, source))


def real_path(path: str | Path) -> str:
    """Return a path with links resolved and letters composed; return a text that is not a path unchanged."""
    try:
        return normalized_name(os.path.realpath(path))
    except ValueError:
        return str(path)
