"""The model and its memory of several texts, which share their forwards. Knows no drafters; alone: `CachedModel`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.accel.drafting.draft import Draft, Tokens
from antiphon.accel.drafting.tree import Tree, plant
from antiphon.accel.engines.torch.attention import lent
from antiphon.accel.engines.torch.growing import GrowingCache
from antiphon.accel.engines.torch.masks import additive, mask
from antiphon.accel.engines.torch.packed import PACKED
from antiphon.accel.engines.torch.prepacked import prepacked
from antiphon.accel.engines.torch.traits import Traits


class BatchedModel:
    """An unmodified model at level *tree* with one cache for texts of different lengths.

    Every text begins at slot 0, so its slots are its positions; what lies behind its length is hidden from it. A
    forward appends as many slots to every text as the largest draft has rows; ``keep`` moves the accepted rows of each
    to its own end. All layers keep the full text, for rings and windows of one width cannot hold ragged ends: windows
    are in the masks alone.
    """

    def __init__(self, model: PreTrainedModel, traits: Traits) -> None:
        self.model = model
        self.traits = traits
        self.cache = GrowingCache()
        self.applied = prepacked(model).applied
        self.lengths: list[int] = []

    def admit(self, prompts: Sequence[Tokens], chunk: int | None = None) -> list[Tensor]:
        """Read the prompts of further texts, ``chunk`` tokens at a time; the logits after each, of shape (1, vocab)."""
        fresh = GrowingCache()
        longest = max(map(len, prompts))
        ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts])
        lasts = [len(prompt) - 1 for prompt in prompts]
        logits: dict[int, Tensor] = {}
        for start in range(0, longest, chunk or longest):
            fed = ids[:, start : start + (chunk or longest)]
            places = sorted({last - start for last in lasts if 0 <= last - start < fed.shape[1]})
            positions = torch.arange(start, start + fed.shape[1]).expand_as(fed)
            read = self._run(fresh, fed, positions, None, places or [0])
            for index, last in enumerate(lasts):
                if last - start in places:
                    logits[index] = read[index, places.index(last - start)][None]
        self._join(fresh, longest)
        self.lengths += map(len, prompts)
        return [logits[index] for index in range(len(prompts))]

    def reachable(self, text: int) -> int:
        """How deep a draft of that text may go: not past the model's positions."""
        return max((self.traits.positions or 2**63) - 1 - self.lengths[text], 0)

    def forward(self, roots: Sequence[int], drafts: Sequence[Draft]) -> list[Tensor]:
        """For each text the logits after its last confirmed token and its draft's rows, of shape (1 + rows, vocab)."""
        trees = [plant(1, draft.parents) for draft in drafts]
        rows = max(map(len, trees))
        ids = torch.zeros((len(trees), rows), dtype=torch.long)
        positions = torch.tensor(self.lengths)[:, None].repeat(1, rows)
        for text, (root, draft, tree) in enumerate(zip(roots, drafts, trees, strict=True)):
            ids[text, : len(tree)] = torch.tensor([root, *draft.tokens])
            positions[text, : len(tree)] += torch.from_numpy(tree.depths)
        masks = {kind: self._mask(trees, rows, kind) for kind in self.traits.reaches}
        logits = self._run(
            self.cache, ids, positions, masks if len(masks) > 1 else next(iter(masks.values())), list(range(rows))
        )
        return [logits[text, : len(tree)] for text, tree in enumerate(trees)]

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Make each text's root and the rows of its path permanent; forget the other rows."""
        width = max(self.lengths)
        kept = [[0, *(1 + row for row in path)] for path in paths]
        most = max(map(len, kept))
        # Shorter paths repeat their last row, which writes the same states to the same slot again.
        steps = torch.tensor([[min(step, len(rows) - 1) for step in range(most)] for rows in kept])
        sources = width + torch.tensor([rows + rows[-1:] * (most - len(rows)) for rows in kept])
        targets = torch.tensor(self.lengths)[:, None] + steps
        texts = torch.arange(len(kept))[:, None]
        self.lengths = [length + len(rows) for length, rows in zip(self.lengths, kept, strict=True)]
        for layer in self._layers:
            for states in (layer.keys, layer.values):
                states[texts, :, targets] = states[texts, :, sources]
        self._crop()

    def drop(self, texts: Sequence[int]) -> None:
        """Forget these texts; the others move up."""
        left = [text for text in range(len(self.lengths)) if text not in texts]
        self.lengths = [self.lengths[text] for text in left]
        for layer in self._layers:
            layer.keys, layer.values = layer.keys[left], layer.values[left]
        self._crop()

    @property
    def _layers(self) -> list[Any]:
        layers: list[Any] = self.cache.layers
        return [layer for layer in layers if layer.is_initialized]

    def _crop(self) -> None:
        width = max(self.lengths, default=0)
        for layer in self._layers:
            layer.crop(width - layer.get_seq_length())

    def _join(self, fresh: GrowingCache, longest: int) -> None:
        """Put another cache's texts below this one's, both widened to the same number of slots."""
        if not self.lengths:
            self.cache = fresh
            return
        width = max(longest, *self.lengths)
        others: list[Any] = fresh.layers
        for layer, other in zip(self.cache.layers, others, strict=True):
            mine: Any = layer
            if mine.is_initialized:
                mine.keys = torch.cat([_widened(mine.keys, width), _widened(other.keys, width)])
                mine.values = torch.cat([_widened(mine.values, width), _widened(other.values, width)])

    def _run(self, cache: GrowingCache, ids: Tensor, positions: Tensor, mask: Any, places: list[int]) -> Tensor:
        """Logits at the ``places`` of what is fed, of shape (texts, places, vocab)."""
        device = self.model.device
        arguments: dict[str, Any] = {self.traits.cache_argument or "past_key_values": cache, "use_cache": True}
        if self.traits.keeps_logits:
            arguments["logits_to_keep"] = torch.tensor(places, device=device)
        with self.applied(), lent(self.model, PACKED) if self.traits.packs and mask is not None else nullcontext():
            outputs = self.model(
                input_ids=ids.to(device), position_ids=positions.to(device), attention_mask=mask, **arguments
            )
        logits: Tensor = outputs.logits
        return logits if self.traits.keeps_logits else logits[:, places]

    def _mask(self, trees: Sequence[Tree], rows: int, kind: str) -> Tensor:
        """Who sees what in one kind of layer, (texts, 1, rows, width + rows); rows that pad see only themselves."""
        width = max(self.lengths)
        sees = torch.zeros((len(trees), 1, rows, width + rows), dtype=torch.bool)
        sees[:, 0, :, width:] = torch.eye(rows, dtype=torch.bool)
        for text, (tree, length) in enumerate(zip(trees, self.lengths, strict=True)):
            own = mask(tree, self.traits.reaches[kind], length=length)
            sees[text, 0, : len(tree), :length] = own[:, :length]
            sees[text, 0, : len(tree), width : width + len(tree)] = own[:, length:]
        sees = sees.to(self.model.device)
        return sees if self.traits.takes_booleans else additive(sees, self.model.dtype)


def _widened(states: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(states, (0, 0, 0, width - states.shape[-2]))
