"""Pickling and copying of objects that hold a model, an index or a reranker. No framework is imported.

LlamaIndex silently omits attributes that cannot be pickled. Without this module, unpickled objects
would lack their model or index.
"""

from __future__ import annotations

import pickle
from typing import Any, ClassVar, Self

from pydantic import BaseModel


class SharedPart:
    """Base class for an object with a part, such as a model, that pickle may be unable to store.

    If pickle cannot store the part, pickling the object raises an error. Deep copies share the
    part. In the list of base classes, put this class before the framework's.
    """

    shared_part: ClassVar[str]
    """The name of the attribute that holds the part."""
    pickling_remedy: ClassVar[str]
    """A call that creates the object again, for the error message."""

    def __getstate__(self) -> dict[Any, Any]:
        """Return the state.

        Raises:
            TypeError: the part cannot be pickled.
        """
        part = getattr(self, self.shared_part)
        try:
            pickle.dumps(part)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise TypeError(
                f"{type(self).__name__} holds a {type(part).__name__}, which cannot be pickled ({error}); "
                f"create the object again instead: {self.pickling_remedy}."
            ) from error
        state: Any = super().__getstate__()
        return state  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return a copy that shares the part."""
        part = getattr(self, self.shared_part)
        return BaseModel.__deepcopy__(self, {**(memo or {}), id(part): part})  # type: ignore[type-var]
