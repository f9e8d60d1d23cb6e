"""What a model has read of one text, kept for the next one that begins alike. Knows neither messages nor drafts."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from transformers import Cache, PreTrainedModel

from antiphon.accel.drafting.draft import Tokens
from antiphon.accel.engines.protocol import Tenant
from antiphon.accel.engines.torch.engine import traits_of
from antiphon.accel.engines.torch.growing import GrowingLayer
from antiphon.accel.engines.torch.sequence import held
from antiphon.accel.engines.torch.traits import DUMMY

if TYPE_CHECKING:
    from antiphon.accel.decoding.stats import Step
    from antiphon.accel.decoding.text_generation import TextGeneration

__all__ = ["PrefixCache"]


class PrefixCache:
    """Keys and values of the last text of a conversation, so that the next one is read only from where it differs.

    Hand the same one to every request of one conversation. A request takes it and gives back its own when it ends; one
    that begins meanwhile finds nothing, and reads all of its prompt. A request that ends in an error gives back
    nothing. What follows the common prefix is cropped off; layers that cannot be cropped (sliding, recurrent) are
    reused where the new text goes on from the whole old one. A model whose rotary frequencies change with the length
    of the text reuses nothing, nor does one that can only be decoded plainly.

    Rounding aside, which depends on how many tokens a forward reads, nothing that is said changes.

    An engine with memory of its own for all texts (OpenVINO's) keeps there what it has read for a ``tenant``: for this
    cache alone, in whole blocks of tokens, for any number of requests at a time, and as long as it has room.
    Caches that were made for one ``tenant`` share it.
    """

    def __init__(self, tenant: Hashable = None) -> None:
        self.tenant: Hashable = Tenant() if tenant is None else tenant
        self._kept: tuple[PreTrainedModel, list[int], Cache] | None = None
        self._taking = Lock()

    @property
    def size(self) -> int:
        """How many tokens are held in here. It is no ``len``, so that an empty one does not pass for none."""
        return 0 if self._kept is None else len(self._kept[1])

    def clear(self) -> None:
        """Forget everything, and free its memory."""
        self._kept, self.tenant = None, Tenant()

    def take(self, model: PreTrainedModel, tokens: Tokens) -> Cache | None:
        """The cache of what these tokens and the last text have in common, all but one token at most; or None."""
        with self._taking:
            kept, self._kept = self._kept, None
        if kept is None or kept[0] is not model:
            return None
        _, before, cache = kept
        common = _common(before, tokens[:-1])
        if not common or (common < len(before) and not _can_crop(cache)):
            return None
        if common < len(before):
            cache.crop(common - len(before))
        return cache

    def keeping(self, generation: TextGeneration, steps: Iterator[Step]) -> Iterator[Step]:
        """The same steps; what they have read is kept when they end or nobody asks for more."""
        try:
            yield from steps
        except GeneratorExit:  # between two steps a cache is whole; after an error inside of one it is not
            self._keep(generation)
            raise
        self._keep(generation)

    def _keep(self, generation: TextGeneration) -> None:
        cache = generation.cache
        if cache is None:  # the engine finds again what it has read for this tenant
            return
        traits = traits_of(generation.request.model)
        # Plain ones (Jamba) may begin their recurrence anew wherever several tokens are read at once.
        if generation.text.is_begun and held(cache) and traits.rope is None and traits.level != "plain":
            self._kept = (generation.request.model, generation.transcript.tokens[: held(cache)], cache)


def _common(before: Sequence[int], after: Sequence[int]) -> int:
    pairs = zip(before, after, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(before), len(after)))


def _can_crop(cache: Cache) -> bool:
    return all(type(layer) is GrowingLayer or type(layer).__name__ == DUMMY for layer in cache.layers)
