"""What the key of a LangChain cache says besides the prompt: what else was asked for. Knows no model and no cache.

What an answer may quote changes what is returned, its citations and its figures, and so belongs into the key: who asks
with other passages, or with none, has asked something else. Only a digest of it is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from langchain_core.caches import RETURN_VAL_TYPE, BaseCache

from antiphon.retrieval import Passage


def keyed(llm_string: str, passages: Sequence[Passage]) -> str:
    """The part of a cache's key that LangChain makes of a model, with what the answer may quote."""
    return f"{llm_string}---references {digest(passages)}" if passages else llm_string


def digest(passages: Sequence[Passage]) -> str:
    """32 bytes, as hexadecimal digits, that differ where anything does that citations tell of passages."""
    told = [astuple(passage) for passage in passages]
    return hashlib.blake2b(repr(told).encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()


class KeyedCache(BaseCache):
    """A cache that also tells calls apart by what LangChain's key of a text-in, text-out model leaves out.

    That is everything that a call was given besides its prompt and its stop strings: parameters and references.
    """

    def __init__(self, cache: BaseCache, parameters: Mapping[str, Any], passages: Sequence[Passage]) -> None:
        self._cache = cache
        self._told = f"---{sorted(parameters.items())}" if parameters else ""
        self._passages = passages

    def _key(self, llm_string: str) -> str:
        return keyed(llm_string + self._told, self._passages)

    def lookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        """What was kept for the same call."""
        return self._cache.lookup(prompt, self._key(llm_string))

    def update(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        """Keep what the call returned."""
        self._cache.update(prompt, self._key(llm_string), return_val)

    async def alookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        """What was kept for the same call."""
        return await self._cache.alookup(prompt, self._key(llm_string))

    async def aupdate(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        """Keep what the call returned."""
        await self._cache.aupdate(prompt, self._key(llm_string), return_val)

    def clear(self, **kwargs: Any) -> None:
        """Empty the cache, of all calls."""
        self._cache.clear(**kwargs)
