"""Pickling and copying of objects that hold a model or an index. Independent of frameworks.

LlamaIndex silently omits attributes that cannot be pickled, so an unpickled object would lack its model or index.
"""

from __future__ import annotations

import pickle
from typing import Any


def check_picklable(part: object, owner: object, remedy: str) -> None:
    """Raise an error if a part of an object cannot be pickled.

    Args:
        part: the attribute to check.
        owner: the object that is being pickled.
        remedy: a call that creates the object again, for the error message.

    Raises:
        TypeError: the part cannot be pickled.
    """
    try:
        pickle.dumps(part)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise TypeError(
            f"{type(owner).__name__} holds a {type(part).__name__}, which cannot be pickled ({error}); "
            f"create the object again instead: {remedy}."
        ) from error


def memo_sharing(part: object, memo: dict[int, Any] | None) -> dict[int, Any]:
    """Return a memo for `copy.deepcopy` with which the copy shares a part with the original.

    Args:
        part: the attribute to share.
        memo: the memo of the enclosing deep copy, if there is one.
    """
    memo = {} if memo is None else memo
    memo[id(part)] = part
    return memo
