"""What a request may remember of others: the table of runners-up that it drafts from. Knows no models and no texts."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from antiphon.accel.drafting.draft import DrafterFactory
from antiphon.accel.drafting.drafters import Blend, Recycling, RunnersUp


def own_table(given: RunnersUp | Literal[False], model: str, *, reproducible: bool) -> RunnersUp | None:
    """The table that was given, unless it is another model's; None for False.

    Raises:
        ValueError: the table is of another model, or remembers requests on which a reproducible one must not depend.
    """
    if given is False:
        return None
    if reproducible:
        raise ValueError(
            "recycling is a table that remembers other requests, on which a reproducible request must not depend; "
            "leave recycling out, or reproducible."
        )
    if given.model not in ("", model):
        raise ValueError(
            f"recycling is a table of runners-up of {given.model!r}, and this is {model!r}; give each model a table of "
            "its own."
        )
    return given


def with_table(factory: DrafterFactory, table: RunnersUp | None) -> DrafterFactory:
    """The same drafters, drafting from this table (None: from none) where they draft from any that is not their own."""
    if factory is Recycling:
        return partial(Recycling, table)
    options = factory.keywords if isinstance(factory, partial) else dict[str, Any]()
    made = factory.func if isinstance(factory, partial) else factory
    if made is not Blend or {"drafter", "recycling"} & options.keys():
        return factory
    recycled: Any = {"recycling": False if table is None else table}
    return partial(factory, **recycled)
