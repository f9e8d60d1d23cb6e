"""Cache keys that include the references and parameters of a call.

References change the citations and step statistics of an answer, so calls with different references must not share a
cache entry. The key contains only a digest of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from langchain_core.caches import RETURN_VAL_TYPE, BaseCache

from antiphon.retrieval import Passage


def key_with_references(llm_string: str, passages: Sequence[Passage]) -> str:
    """Return LangChain's key of a model with a digest of the passages.

    Args:
        llm_string: LangChain's key.
        passages: references of the call.
    """
    return f"{llm_string}---references {digest(passages)}" if passages else llm_string


def digest(passages: Sequence[Passage]) -> str:
    """Return a 32-byte hexadecimal digest of every field of the passages."""
    fields = [astuple(passage) for passage in passages]
    return hashlib.blake2b(repr(fields).encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()


class KeyedCache(BaseCache):
    """A cache whose keys include parameters and references, which LangChain's key of an LLM call omits.

    Args:
        cache: the cache that stores the entries.
        parameters: arguments of the call other than prompt and stop strings.
        passages: references of the call.
    """

    def __init__(self, cache: BaseCache, parameters: Mapping[str, Any], passages: Sequence[Passage]) -> None:
        self._cache = cache
        self._parameters = f"---{sorted(parameters.items())}" if parameters else ""
        self._passages = passages

    def _key(self, llm_string: str) -> str:
        return key_with_references(llm_string + self._parameters, self._passages)

    def lookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        """Return the cached result of the same call."""
        return self._cache.lookup(prompt, self._key(llm_string))

    def update(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        """Store the result of the call."""
        self._cache.update(prompt, self._key(llm_string), return_val)

    async def alookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        """Return the cached result of the same call."""
        return await self._cache.alookup(prompt, self._key(llm_string))

    async def aupdate(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        """Store the result of the call."""
        await self._cache.aupdate(prompt, self._key(llm_string), return_val)

    def clear(self, **kwargs: Any) -> None:
        """Clear the whole cache."""
        self._cache.clear(**kwargs)
