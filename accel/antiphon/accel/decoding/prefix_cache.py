"""Prefix cache: the KV cache of one text, kept for the next prompt that starts alike. Independent of messages."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from transformers import Cache, PreTrainedModel

from antiphon.accel.drafting.draft import Tokens
from antiphon.accel.engines.protocol import AnonymousTenant
from antiphon.accel.engines.torch.cache_kinds import DUMMY
from antiphon.accel.engines.torch.engine import traits_of
from antiphon.accel.engines.torch.growing_cache import GrowingLayer
from antiphon.accel.engines.torch.sequence import cached_length

if TYPE_CHECKING:
    from antiphon.accel.decoding.generation import Generation
    from antiphon.accel.decoding.stats import Step

__all__ = ["PrefixCache"]


class PrefixCache:
    """KV cache of the last text of a conversation, so that the next request reads only what differs from it.

    Pass the same one to every request of a conversation. A request takes the cache and gives its own back when it
    ends; a request that starts meanwhile finds nothing and prefills its whole prompt. A request that ends in an error
    gives nothing back. Tokens after the common prefix are cropped; layers that cannot be cropped (sliding, recurrent)
    are reused only if the new text continues the whole old one. Nothing is reused for a model whose rotary frequencies
    change with the length of the text, or that can only be decoded plainly. Texts do not change, except by rounding,
    which depends on how many tokens a forward pass reads.

    An engine with one memory for all requests (OpenVINO's) keeps the tenant's prefixes there: for this cache
    alone, in whole blocks of tokens, for any number of requests at a time, as long as there is space.

    Args:
        tenant: caches with the same tenant share what such an engine has read; None: with no other cache.
    """

    def __init__(self, tenant: Hashable = None) -> None:
        self.tenant: Hashable = AnonymousTenant() if tenant is None else tenant
        self._kept: tuple[PreTrainedModel, list[int], Cache] | None = None
        self._taking = Lock()

    @property
    def size(self) -> int:
        """Number of cached tokens. There is no ``len``: an empty cache would be false like None."""
        return 0 if self._kept is None else len(self._kept[1])

    def clear(self) -> None:
        """Drop everything and free its memory."""
        self._kept, self.tenant = None, AnonymousTenant()

    def take(self, model: PreTrainedModel, tokens: Tokens) -> Cache | None:
        """Take out the cache of the common prefix of a prompt and the last text; None if there is none.

        Args:
            model: the model that reads the prompt.
            tokens: token ids of the prompt, of which at least the last one is left to be read.
        """
        with self._taking:
            kept, self._kept = self._kept, None
        if kept is None or kept[0] is not model:
            return None
        _, before, cache = kept
        common = _common_length(before, tokens[:-1])
        if not common or (common < len(before) and not _can_crop(cache)):
            return None
        if common < len(before):
            cache.crop(common - len(before))
        return cache

    def keep_after(self, generation: Generation, steps: Iterator[Step]) -> Iterator[Step]:
        """Yield the same steps, and keep the request's cache when they end or are not read any more.

        Args:
            generation: the request that reads and fills the cache.
            steps: its steps.
        """
        try:
            yield from steps
        except GeneratorExit:  # between two steps the cache is consistent; after an error inside of one it is not
            self._keep(generation)
            raise
        self._keep(generation)

    def _keep(self, generation: Generation) -> None:
        cache = generation.cache
        if cache is None:  # the engine has a prefix cache for this tenant
            return
        traits = traits_of(generation.request.model)
        # Plain models (Jamba) may restart their recurrence whenever several tokens are read at once.
        if generation.running.is_started and cached_length(cache) and traits.rope is None and traits.level != "plain":
            self._kept = (generation.request.model, generation.history.tokens[: cached_length(cache)], cache)


def _common_length(before: Sequence[int], after: Sequence[int]) -> int:
    pairs = zip(before, after, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(before), len(after)))


def _can_crop(cache: Cache) -> bool:
    return all(type(layer) is GrowingLayer or type(layer).__name__ == DUMMY for layer in cache.layers)
