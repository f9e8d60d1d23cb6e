"""Tenants, one for each combination of key, user and collection, with prefix caches and draft statistics."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from threading import Lock

from antiphon.accel import PrefixCache
from antiphon.accel.drafting.draft import common_length
from antiphon.accel.drafting.drafters import RecyclingTable

RECYCLING_ENTRIES = 16_384
"""Number of contexts in the token recycling table of one tenant: about 5 MB."""


@dataclass(slots=True)
class _CachedPrompt:
    """A prompt and its KV cache."""

    tokens: tuple[int, ...]
    cache: PrefixCache


@dataclass(eq=False, slots=True)
class Tenant:
    """One tenant. Its caches are used for its own requests only.

    Attributes:
        name: a digest of its API key and user, the same for all collections.
        table: the token recycling table, from which drafts are made.
    """

    name: str
    table: RecyclingTable
    _identity: object = field(default_factory=object)
    _prompts: list[_CachedPrompt] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    @property
    def cached_tokens(self) -> int:
        """The number of prompt tokens whose KV cache is kept."""
        with self._lock:
            return sum(prompt.cache.size for prompt in self._prompts)

    def take(self, tokens: Sequence[int]) -> PrefixCache | None:
        """Remove and return the prefix cache that shares the longest prefix with a prompt; or return a new, empty one.

        Returns None for a prompt without tokens: the model runs on another server, or only quotes
        are given.

        The caller gives the cache back with `keep`. Some engines keep one prefix cache for all
        requests. There, the new `PrefixCache` only identifies the tenant, so prefixes are shared
        within this tenant only.
        """
        if not tokens:
            return None

        with self._lock:
            best = max(self._prompts, key=lambda prompt: common_length(prompt.tokens, tokens), default=None)
            if best is None or not common_length(best.tokens, tokens):
                return PrefixCache(self._identity)
            self._prompts.remove(best)
            return best.cache

    def keep(self, tokens: Sequence[int], cache: PrefixCache) -> None:
        """Keep the prefix cache of a prompt.

        An empty prefix cache is dropped. It belongs to an engine with its own prefix cache. This
        engine finds the tenant's blocks without the object.
        """
        if not cache.size:
            return
        with self._lock:
            self._prompts.append(_CachedPrompt(tuple(tokens), cache))

    def evict_oldest(self) -> bool:
        """Drop the least recently used prompt; return whether there was one."""
        with self._lock:
            return bool(self._prompts) and self._prompts.pop(0) is not None


class Tenants:
    """All tenants. If there are more than `max_tenants`, the least recently used ones are dropped.

    Args:
        prefix_cache_tokens: prompt tokens whose KV cache is kept for all tenants together; 0: none.
    """

    def __init__(self, make_table: Callable[[], RecyclingTable], *, max_tenants: int, prefix_cache_tokens: int) -> None:
        self._make_table = make_table
        self._max_tenants = max_tenants
        self._prefix_cache_tokens = prefix_cache_tokens
        self._tenants: OrderedDict[tuple[str, str | None], Tenant] = OrderedDict()
        self._lock = Lock()

    def of(self, key: str, user: str | None, collection: str | None = None) -> Tenant:
        """Return the tenant of a request, created if it is new.

        Each collection has separate tenants. So a key that loses access to a collection also loses
        access to the collection's caches.

        Args:
            key: the digest of the API key, from `Access`.
            collection: the collection of the request; None: the language model alone.
        """
        name = sha256(f"{key}\0{user or ''}".encode("utf-8", "surrogatepass")).hexdigest()
        with self._lock:
            tenant = self._tenants.pop((name, collection), None) or Tenant(name, self._make_table())
            self._tenants[name, collection] = tenant
            while len(self._tenants) > self._max_tenants:
                self._tenants.popitem(last=False)
        return tenant

    def keep(self, tenant: Tenant, tokens: Sequence[int], cache: PrefixCache | None) -> None:
        """Keep the prefix cache of a prompt, and drop the oldest prefix caches until the rest fits the limit."""
        if not self._prefix_cache_tokens or cache is None:
            return
        tenant.keep(tokens, cache)
        with self._lock:
            tenants = list(self._tenants.values())
        for each in tenants:
            while sum(one.cached_tokens for one in tenants) > self._prefix_cache_tokens and each.evict_oldest():
                pass

    @property
    def cached_tokens(self) -> int:
        """The number of prompt tokens whose KV cache is kept, for all tenants together."""
        with self._lock:
            tenants = list(self._tenants.values())
        return sum(tenant.cached_tokens for tenant in tenants)
