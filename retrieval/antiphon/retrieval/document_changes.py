"""Decide which documents of an index are kept and which are dropped when files are indexed into it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon.retrieval.errors import WouldDropDocuments

UPLOADED = "uploaded/"
"""The prefix of the sources of uploaded documents; such sources are names, not paths."""

Confirm = Callable[[Sequence[str]], bool]
"""Called with the sources of the documents that a change would drop. Returns whether to go on."""

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class DocumentChange:
    """The sources of the documents that are kept unchanged, and of the documents that are dropped."""

    kept: frozenset[str] = frozenset()
    dropped: tuple[str, ...] = ()


def plan_change(
    location: str,
    before: Mapping[str, int],
    sources: Collection[str],
    paths: Sequence[str | Path],
    *,
    add: bool,
    confirm: Confirm | None = None,
) -> DocumentChange:
    """Decide which documents of an index are kept if files are indexed into it.

    Documents whose source is indexed again are replaced. Uploaded documents are kept. Other documents are kept if
    ``add`` is set and they are not below ``paths``.

    Args:
        add: Whether the documents are added to the index, instead of replacing its content.
        confirm: Called if documents would be dropped. None: drop them.

    Raises:
        WouldDropDocuments: ``confirm`` returned False.
    """
    replaced = {real_path(source) for source in sources}
    places = [real_path(path) for path in paths]
    kept, dropped = set(), []
    for source in before:
        if source.startswith(UPLOADED) or (add and not is_below(source, places)):
            kept.add(source)
        elif real_path(source) not in replaced:
            dropped.append(source)
    if dropped and confirm is not None and not confirm(dropped):
        raise WouldDropDocuments(_refusal(location, dropped, len(before)))
    return DocumentChange(frozenset(kept - set(sources)), tuple(dropped))


def is_below(source: str, places: Sequence[str]) -> bool:
    """Return whether a document is one of several files, or below one of several folders."""
    path = real_path(source)
    return any(path == place or path.startswith(place.rstrip(os.sep) + os.sep) for place in places)


def real_path(path: str | Path) -> str:
    """Return the target of a path; return a source that is not a path unchanged."""
    try:
        return os.path.realpath(path)
    except ValueError:
        return str(path)


def listed(sources: Sequence[str]) -> str:
    """Return a short list of sources for a message."""
    more = f" and {len(sources) - _SHOWN} more" if len(sources) > _SHOWN else ""
    return ", ".join(sources[:_SHOWN]) + more


def _refusal(location: str, dropped: Sequence[str], count: int) -> str:
    return (
        f"This would drop {len(dropped)} of the {count} documents in {location}: {listed(dropped)}. To keep them, "
        "add to the index (--add); to drop them, confirm (--yes). Nothing was changed."
    )
