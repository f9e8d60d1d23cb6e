"""What a caller hands over as a list of passages, in whichever framework's words. Knows no framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from antiphon.retrieval import Passage


def coerce_passages(
    given: object, passage_of: Callable[[object], Passage | None], *, alone: tuple[type, ...], kinds: str, name: str
) -> list[Passage]:
    """The passages of a list, each made by ``passage_of``; ``alone`` are types that are one item and no list of them.

    Raises:
        TypeError: it is no list of ``kinds``, or something in it is none.
    """
    if isinstance(given, (str, *alone)) or not isinstance(given, Iterable):
        raise TypeError(f"{name} is of type {type(given).__name__}; give a list of {kinds}.")
    passages: list[Passage] = []
    for index, item in enumerate(given):
        passage = passage_of(item)
        if passage is None:
            raise TypeError(f"{name}[{index}] is of type {type(item).__name__}; give {kinds}.")
        passages.append(passage)
    return passages
