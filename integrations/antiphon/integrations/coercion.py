"""Converts a caller's list of texts, documents or nodes to passages. Independent of frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from antiphon.retrieval import Passage


def coerce_passages(
    given: object, passage_of: Callable[[object], Passage | None], *, alone: tuple[type, ...], kinds: str, name: str
) -> list[Passage]:
    """Convert each item of a list to a passage.

    Args:
        given: the caller's argument.
        passage_of: converts one item; returns None if it cannot.
        alone: types that are iterable but are a single item, not a list of items.
        kinds: the accepted types in words, for error messages.
        name: the argument's name, for error messages.

    Raises:
        TypeError: ``given`` is not a list, or an item cannot be converted.
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
