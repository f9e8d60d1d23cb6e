"""What a pickle of a framework's object must hold whole, or refuse. Knows no framework.

LlamaIndex leaves out of a pickle what cannot be pickled, and so makes objects that have lost their model or index.
"""

from __future__ import annotations

import pickle
from typing import Any


def check_picklable(part: object, owner: object, remedy: str) -> None:
    """Refuse to pickle ``owner`` where a part of it cannot be.

    Raises:
        TypeError: the part cannot be pickled; says what to do.
    """
    try:
        pickle.dumps(part)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise TypeError(
            f"{type(owner).__name__} holds a {type(part).__name__}, which no pickle can hold ({error}); "
            f"make it anew where it is needed: {remedy}."
        ) from error


def shared(part: object, memo: dict[int, Any] | None) -> dict[int, Any]:
    """What a deep copy goes by, when it has to share a part with what it is a copy of."""
    memo = {} if memo is None else memo
    memo[id(part)] = part
    return memo
