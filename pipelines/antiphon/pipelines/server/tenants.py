"""Who asks, and what is remembered for them alone: prefixes that were read, and runners-up. Knows no endpoint."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from threading import Lock

from antiphon.accel import PrefixCache
from antiphon.accel.drafting.drafters import RunnersUp
from antiphon.pipelines.server.errors import ApiError

ENTRIES = 16_384
"""Contexts that are remembered of one tenant's texts: about 5 MB."""


def check_key(header: str | None, keys: Sequence[str]) -> str:
    """The digest of the key in an ``Authorization`` header; empty where no key is needed.

    Every key is compared, each in constant time.

    Raises:
        ApiError: there is none, or it is none of these.
    """
    if not keys:
        return ""
    scheme, _, shown = (header or "").partition(" ")
    given = sha256(shown.strip().encode("utf-8", "surrogateescape")).hexdigest()
    matches = [compare_digest(given, sha256(key.encode()).hexdigest()) for key in keys]
    if scheme.lower() != "bearer" or not any(matches):
        message = "This server needs a key that it knows; send it as: Authorization: Bearer KEY"
        raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
    return given


@dataclass(slots=True)
class _ReadPrompt:
    """A prompt that was read, and what the model has kept of it."""

    tokens: tuple[int, ...]
    cache: PrefixCache


@dataclass(eq=False, slots=True)
class ServerTenant:
    """One who asks. What is remembered of its texts makes its next ones faster and is used for nobody else."""

    name: str
    table: RunnersUp
    _shared: object = field(default_factory=object)
    _read: list[_ReadPrompt] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    @property
    def held(self) -> int:
        """How many tokens of prompts are held."""
        with self._lock:
            return sum(each.cache.size for each in self._read)

    def take(self, tokens: Sequence[int]) -> PrefixCache:
        """What was read of the prompt that begins most like this one; it is given back by `keep`."""
        with self._lock:
            best = max(self._read, key=lambda each: _in_common(each.tokens, tokens), default=None)
            if best is None or not _in_common(best.tokens, tokens):
                return PrefixCache(self._shared)
            self._read.remove(best)
            return best.cache

    def keep(self, tokens: Sequence[int], cache: PrefixCache) -> None:
        """Remember what was read of a prompt; an engine that holds it by itself finds it again for this tenant."""
        if not cache.size:
            return
        with self._lock:
            self._read.append(_ReadPrompt(tuple(tokens), cache))

    def forget_oldest(self) -> bool:
        """Forget the prompt that was read the longest ago; whether there was one."""
        with self._lock:
            return bool(self._read) and self._read.pop(0) is not None


class Tenants:
    """All who ask, the latest last; of those who have not come for long nothing is remembered."""

    def __init__(self, make_table: Callable[[], RunnersUp], *, most: int, prefix_tokens: int) -> None:
        self._make_table = make_table
        self._most = most
        self._prefix_tokens = prefix_tokens
        self._known: OrderedDict[str, ServerTenant] = OrderedDict()
        self._lock = Lock()

    def of(self, key: str, user: str | None) -> ServerTenant:
        """The tenant of a key's digest and the ``user`` that a request names, if it names one."""
        name = sha256(f"{key}\0{user or ''}".encode("utf-8", "surrogatepass")).hexdigest()
        with self._lock:
            tenant = self._known.pop(name, None) or ServerTenant(name, self._make_table())
            self._known[name] = tenant
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        return tenant

    def keep(self, tenant: ServerTenant, tokens: Sequence[int], cache: PrefixCache) -> None:
        """Remember what was read of a prompt; the oldest are forgotten where there are too many tokens in all."""
        if not self._prefix_tokens:
            return
        tenant.keep(tokens, cache)
        with self._lock:
            known = list(self._known.values())
        for each in known:
            while sum(other.held for other in known) > self._prefix_tokens and each.forget_oldest():
                pass

    @property
    def held(self) -> int:
        """How many tokens of prompts are held for all."""
        with self._lock:
            known = list(self._known.values())
        return sum(each.held for each in known)


def _in_common(before: Sequence[int], after: Sequence[int]) -> int:
    pairs = zip(before, after, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(before), len(after)))
