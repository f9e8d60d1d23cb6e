"""Prefix cache: the KV cache of one text, kept for the next prompt with the same beginning.

This module does not depend on chat messages.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from threading import Lock
from typing import TYPE_CHECKING

from antiphon.accel.drafting.draft import Tokens, common_length
from antiphon.accel.engines.protocol import AnonymousTenant

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

    from antiphon.accel.decoding.engine_request import EngineRequest
    from antiphon.accel.decoding.stats import Step


class PrefixCache:
    """Keeps the KV cache of a conversation's last text, so that the next request prefills only the new tokens.

    Pass the same object to every request of a conversation. A request takes the KV cache out when
    it starts, and puts the cache back when it ends without an error. A request that starts
    meanwhile prefills its whole prompt. Tokens after the common prefix are cropped. Layers that
    cannot be cropped (sliding, recurrent) are reused only if the new text continues the whole old
    text. Nothing is reused if the model's rotary frequencies change with the length of the text, or
    if its verification level is "plain". Texts do not change, except by rounding, which depends on
    the number of tokens per forward pass.

    An engine with one KV cache for all requests (OpenVINO's) keeps the tenant's prefixes in that cache instead, in
    whole blocks of tokens, until the memory is needed. Any number of requests can use these
    prefixes at the same time.

    Args:
        tenant: Owner of the text. In an engine with one KV cache, all prefix caches of a tenant
            share their prefixes. None: the prefixes are not shared.
    """

    def __init__(self, tenant: Hashable = None) -> None:
        self.tenant: Hashable = AnonymousTenant() if tenant is None else tenant
        self._kept: tuple[PreTrainedModel, list[int], Cache] | None = None
        self._taking = Lock()

    @property
    def size(self) -> int:
        """Number of cached tokens. There is no ``__len__``, because an empty cache would then be falsy like None."""
        return 0 if self._kept is None else len(self._kept[1])

    def clear(self) -> None:
        """Drop the cached text and free its memory."""
        self._kept, self.tenant = None, AnonymousTenant()

    def take(self, model: PreTrainedModel, tokens: Tokens) -> Cache | None:
        """Remove and return the KV cache of the prefix that a prompt shares with the last text, or None.

        Args:
            tokens: Token ids of the prompt. The returned cache never contains the last token, which
                is left to prefill.
        """
        with self._taking:
            kept, self._kept = self._kept, None
        if kept is None or kept[0] is not model:
            return None
        _, before, cache = kept
        common = common_length(before, tokens[:-1])
        if not common or (common < len(before) and not _can_crop(cache)):
            return None
        if common < len(before):
            cache.crop(common - len(before))
        return cache

    def keep_after(self, request: EngineRequest, steps: Iterator[Step]) -> Iterator[Step]:
        """Yield the given steps, and keep the request's KV cache when they end or the iterator is closed."""
        try:
            yield from steps
        except GeneratorExit:  # the KV cache is consistent between two steps, but not after an error inside a step
            self._keep(request)
            raise
        self._keep(request)

    def keep(self, model: PreTrainedModel, tokens: Tokens, cache: Cache | None) -> None:
        """Keep the KV cache of a text, unless it cannot be reused.

        Args:
            tokens: Token ids of the text; the cache may hold fewer.
            cache: The KV cache; None if the engine has a prefix cache for this tenant.
        """
        if cache is None:
            return
        from antiphon.accel.engines.torch.cache_kinds import cached_length
        from antiphon.accel.engines.torch.engine import traits_of

        if not cached_length(cache):
            return
        traits = traits_of(model)
        # Models of level "plain" (Jamba) may restart their recurrence whenever a forward pass has several tokens.
        if traits.rope is None and traits.level != "plain":
            self._kept = (model, list(tokens[: cached_length(cache)]), cache)

    def _keep(self, request: EngineRequest) -> None:
        if request.is_started and (cache := request.cache) is not None:
            from antiphon.accel.decoding.model_request import ModelRequest

            assert isinstance(request, ModelRequest)  # caches of transformers belong to its models
            self.keep(request.model, request.output.tokens, cache)


def _can_crop(cache: Cache) -> bool:
    from antiphon.accel.engines.torch.cache_kinds import DUMMY
    from antiphon.accel.engines.torch.growing_cache import GrowingLayer

    return all(type(layer) is GrowingLayer or type(layer).__name__ == DUMMY for layer in cache.layers)
