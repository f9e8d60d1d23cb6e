"""One sequence on torch: forward passes of a model over a KV cache, and removal of rejected rows."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import Cache, DynamicCache, PreTrainedModel

from antiphon.accel.drafting.draft import EMPTY, Draft, Tokens, most_likely_chain, trim
from antiphon.accel.drafting.tree import Tree, build_tree
from antiphon.accel.engines.protocol import REPRODUCIBLE_ROWS, KeptStates
from antiphon.accel.engines.torch.attention import (
    EXACT,
    additive_mask,
    attention_mask,
    override_attention,
    varying_shapes,
)
from antiphon.accel.engines.torch.bita_weights import BitaCache, BitaWeights, embed_tokens
from antiphon.accel.engines.torch.cache_kinds import (
    cached_length,
    capacity,
    crop_attention,
    end_recording,
    keep_rows,
    only_appends,
    recording_layers,
    supported_level,
)
from antiphon.accel.engines.torch.draft_states import Ancestry, DraftStates
from antiphon.accel.engines.torch.growing_cache import GrowingLayer, make_growing
from antiphon.accel.engines.torch.packed_attention import PACKED
from antiphon.accel.engines.torch.traits import Traits

CACHE_ARGUMENTS = ("past_key_values", "cache_params")
"""Names that models give to their cache argument."""


class TorchSequence:
    """The cache of one sequence, and the forward passes of an unmodified model over it.

    ``forward`` computes the confirmed tokens that are not cached yet, and a draft below the last of
    them. ``keep`` then keeps the accepted rows and removes the others. Between the two calls the
    cache holds every row. After ``keep`` the cache holds all confirmed tokens except the last one.

    Args:
        cache: Cache to continue from; None for a new `DynamicCache`.
        reproducible: Pad every forward pass after the prefill to `REPRODUCIBLE_ROWS`, and compute
            the attention of each row alone (see `antiphon.accel.engines.torch.attention`). Then
            rounding does not depend on the draft.
        bita: Weights of mask tokens, which the drafter drafts as negative token ids; or None.
        hidden_states: Indices of the hidden states that are collected for a draft head.
        shares: Function that returns whether the model can batch sequences; called if needed.

    Attributes:
        level: Verification level of this model with this cache.
        length: Number of cached tokens.
        capacity: Number of tokens that fit into the cache; None if the cache grows.
        is_prefilled: Whether a forward pass has run for this sequence.
        hidden_states: Hidden states of kept rows.
        argmax: Always None: `TorchLogits` computes the argmax. (A `CompiledSequence` sets it.)
    """

    def __init__(
        self,
        model: PreTrainedModel,
        traits: Traits,
        cache: Cache | None = None,
        *,
        padding: int = 0,
        reproducible: bool = False,
        bita: BitaWeights | None = None,
        hidden_states: tuple[int, ...] = (),
        shares: Callable[[], bool] = lambda: True,
    ) -> None:
        self.model = model
        self.traits = traits
        self.cache = DynamicCache(config=model.config) if cache is None else cache
        make_growing(self.cache)
        self.padding = padding
        self.reproducible = reproducible
        self.bita = bita and bita.to_model(model)
        self.hidden_states = KeptStates(hidden_states)
        self._shares = shares
        self._is_simple = not reproducible and bita is None and only_appends(self.cache)
        self.argmax: Tensor | None = None
        self.is_prefilled = False
        self.level = traits.level
        self.length = cached_length(self.cache)
        self.capacity = capacity(self.cache)
        self._last_input: tuple[Tokens, Draft, int] = ((), EMPTY, 0)  # pending, draft, other rows
        self._snapshot: list[dict[str, Any]] | None = None
        self._draft_states: DraftStates | None = None
        self._recording_layers = recording_layers(self.cache)

    @property
    def can_batch(self) -> bool:
        """Whether this sequence may share a forward pass."""
        device = self.model.device.type
        is_tree = self._is_simple and self.level == "tree"
        return is_tree and not torch.is_autocast_enabled(device) and self._shares()

    def can_draft_at_prefill(self, context: Tokens) -> bool:
        """See `CachedSequence.can_draft_at_prefill`.

        False if the shape of the prefill affects the result. This is so in reproducible decoding,
        if the model's rotary frequencies switch, and if the model has recurrent state, which a
        prefill computes in chunks.
        """
        shape_matters = self.reproducible or self.traits.rope is not None or bool(self.traits.state_kinds)
        return self.level == "tree" and not shape_matters and len(context) > self.length + 1

    def prefill(self, prompt: Tokens, chunk: int | None = None) -> Tensor:
        """Run the prefill of a prompt.

        Args:
            prompt: Tokens that are not cached yet.
            chunk: Maximum number of tokens per forward pass; None: all at once.

        Returns:
            Logits after the last token, shape (1, vocab).
        """
        end_recording(self.cache.layers)
        size = chunk or max(len(prompt), 1)
        last = (len(prompt) - 1) // size * size
        for start in range(0, last, size):
            self._run(prompt[start : start + size], EMPTY)
            self.hidden_states.keep(self.length, range(size))
            self.length += size
        logits = self._feed(prompt[last:], EMPTY, padding_rows=0)  # no padding: there is no draft
        self.inspect_cache()
        return logits

    def fit(self, draft: Draft, rows: int, depth: int, pending: int = 1) -> Draft:
        """See `CachedSequence.fit`."""
        if self.level == "plain":
            return EMPTY
        draft = draft if self.level == "tree" else most_likely_chain(draft)
        free = sys.maxsize if self.capacity is None else self.capacity - self.length
        free -= pending + (self.bita.prefix if self.bita else 0)
        max_depth = max(self._max_depth() - (pending - 1), 0)
        return trim(draft, min(rows, free), min(depth, max_depth), max_depth)

    def forward(self, pending: Tokens, draft: Draft) -> Tensor:
        """Run a forward pass over pending tokens and a draft.

        Args:
            pending: Confirmed tokens that are not cached yet.

        Returns:
            Logits after the last pending token and after every draft row, of shape (1 + rows, vocab).
        """
        rows = REPRODUCIBLE_ROWS if self.reproducible else 0
        return self._feed(pending, draft, padding_rows=max(rows - len(pending) - len(draft), 0))

    def keep(self, path: Sequence[int]) -> None:
        """See `CachedSequence.keep`."""
        pending, draft, others = self._last_input
        fed, kept = len(pending) + len(draft) + others, len(pending) + len(path)
        rows = [*range(len(pending)), *(len(pending) + row for row in path)]
        self.hidden_states.keep(self.length, rows)
        if self._snapshot is not None and kept < fed:
            self._replay([*pending, *(draft.tokens[row] for row in path)], fed)
        elif kept < fed and self.level in ("tree", "linear"):
            keep_rows(self.cache, rows, length=self.length, fed=fed)
        if self._draft_states is not None:
            self._draft_states.keep(rows[-1])
            self._draft_states = None
        end_recording(self._recording_layers)
        self.length += kept

    def discard(self) -> None:
        """See `CachedSequence.discard`."""
        pending, draft, others = self._last_input
        fed = len(pending) + len(draft) + others
        if self._snapshot is not None:
            self._restore(fed)
        elif self.level in ("tree", "linear"):
            keep_rows(self.cache, (), length=self.length, fed=fed)
        end_recording(self._recording_layers)

    def advance(self, tokens: int) -> None:
        """Add ``tokens`` to the length. The caller has cached this number of tokens without ``forward``."""
        self.length += tokens

    def take_layers(self) -> list[Any]:
        """Remove the layers from the cache and return them; put empty layers in their place."""
        layers: list[Any] = self.cache.layers
        self.cache.layers = [GrowingLayer() for _ in layers]
        return layers

    def put_states(self, states: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Append keys and values (1, heads, tokens, size) to every layer."""
        for layer, (keys, values) in zip(self._layers, states, strict=True):
            layer.update(keys, values)

    def reset(self) -> None:
        """See `CachedSequence.reset`."""
        self.cache = DynamicCache(config=self.model.config)
        make_growing(self.cache)
        self.length = 0
        self.capacity = None
        self.is_prefilled = False
        self._snapshot = None
        self._draft_states = None
        self._recording_layers = recording_layers(self.cache)

    def is_evicted(self, context: Tokens) -> bool:
        """See `CachedSequence.is_evicted`.

        True if the text has become too long for the rotary frequencies of short contexts.
        """
        rope = self.traits.rope
        return rope is not None and rope.rebuilds and self.length <= rope.position < len(context)

    def inspect_cache(self) -> None:
        """Set the level. It depends on the layers of the cache, which exist only after the prefill.

        Warns if the caller's cache lowers the level.
        """
        self.is_prefilled = True
        self.level, reason = supported_level(self.cache, self.traits.level)
        self._recording_layers = recording_layers(self.cache)
        if self.level == "plain" != self.traits.level:
            warnings.warn(
                f"This {type(self.cache).__name__} is decoded plainly, without drafts: {reason}. The output is the "
                "same; for speed pass a DynamicCache, a GrowingCache, or a Cache of full-attention StaticLayers.",
                stacklevel=2,
            )

    @property
    def _layers(self) -> list[Any]:
        return list(self.cache.layers)

    def record(self, pending: Tokens, draft: Draft, padding_rows: int = 0) -> None:
        """Store the input of the next forward pass, so that ``keep`` can remove rejected rows.

        Args:
            padding_rows: Number of rows that only pad the forward pass to a fixed shape.
        """
        self._last_input = (pending, draft, padding_rows + self._prefix_rows(draft.tokens))
        if len(draft) or padding_rows:
            for layer in self._recording_layers:  # prompts and plain steps have no rows to remove
                layer.activate_past_recording()
        self._snapshot = _recurrent_states(self.cache) if self.level == "replay" and len(draft) else None
        self._draft_states = None

    def _feed(self, pending: Tokens, draft: Draft, padding_rows: int) -> Tensor:
        self.record(pending, draft, padding_rows)
        return self._run(pending, draft, padding_rows)

    def _run(self, pending: Tokens, draft: Draft, padding_rows: int = 0) -> Tensor:
        # 1. Tree geometry, only with a draft: for a prompt, its memory would be quadratic.
        tree = build_tree(len(pending), draft.parents, padding_rows) if len(draft) or padding_rows else None
        depths = torch.arange(len(pending)) if tree is None else torch.from_numpy(tree.depths)
        # 2. Inputs: tokens and positions (1, pending + draft + padding), mask (1, 1, rows, slots).
        rows = 1 + len(draft) + padding_rows
        tokens = [*pending, *draft.tokens, *[pending[-1]] * padding_rows]
        arguments = self._inputs(tokens)
        if self.traits.takes_logits_to_keep:
            arguments["logits_to_keep"] = rows
        if self.hidden_states.layers:
            arguments["output_hidden_states"] = list(self.hidden_states.layers)
        if self.traits.takes_positions:
            arguments["position_ids"] = self.positions(depths)[None].to(self.model.device)
        mask = self._mask(tree, tokens)
        # 3. Forward pass: logits (1 + draft rows, vocab).
        with self._attention(tree), self._states(tree, arguments), varying_shapes(self.model):
            outputs = self.model(attention_mask=mask, **arguments)
        self.hidden_states.note([outputs.hidden_states[layer][0] for layer in self.hidden_states.layers])
        logits: Tensor = outputs.logits[0, -rows:][: rows - padding_rows]
        return logits

    def positions(self, depths: Tensor) -> Tensor:
        """Return the positions of rows, given their depths below the first pending token."""
        return (depths + (self.length - self.padding)).clamp_(min=0)

    def _attention(self, tree: Tree | None) -> AbstractContextManager[None]:
        """Override the attention of a forward pass with exact or packed attention, if needed."""
        if self.reproducible:
            return override_attention(self.model, EXACT)
        packs = tree is not None and self.traits.uses_packed_attention
        return override_attention(self.model, PACKED) if packs else nullcontext()

    def _states(self, tree: Tree | None, arguments: dict[str, Any]) -> AbstractContextManager[None]:
        """Make layers with recurrent state follow the rows of a draft and record the state after each row."""
        if tree is None or not self.traits.state_kinds or self.level not in ("tree", "linear"):
            return nullcontext()
        self._draft_states = DraftStates(self.cache, Ancestry(tree, self.model.device))
        arguments[self._cache_argument] = self._draft_states
        return self._draft_states.following()

    @property
    def _cache_argument(self) -> str:
        return self.traits.cache_argument or "past_key_values"

    def _inputs(self, tokens: Tokens) -> dict[str, Any]:
        """Return tokens and cache as arguments of the model.

        For mask tokens, embeddings replace the token ids, and the cache adds BiTA's prefix.
        """
        name = self._cache_argument
        if self.bita is not None and min(tokens) < 0:
            embeddings = embed_tokens(self.model, tokens, self.bita)
            return {"inputs_embeds": embeddings, name: BitaCache(self.cache, self.bita), "use_cache": True}
        return {"input_ids": torch.tensor([tokens], device=self.model.device), name: self.cache, "use_cache": True}

    def _prefix_rows(self, tokens: Tokens) -> int:
        """Return the number of prefix rows that BiTA appends; 0 if no row is a mask token."""
        return self.bita.prefix if self.bita is not None and min(tokens, default=0) < 0 else 0

    def _mask(self, tree: Tree | None, tokens: Tokens) -> Tensor | dict[str, Tensor | None] | None:
        if tree is not None and self.level == "tree":
            masks = {kind: self.tree_mask(tree, kind, tokens) for kind in self.traits.attention_spans}
            no_masks = dict.fromkeys(self.traits.state_kinds)  # no row of a draft is padding
            return no_masks | masks if len(masks) > 1 else next(iter(masks.values()), None)
        if not self.padding:
            return None  # transformers then takes its fast path for causal attention
        visible = torch.ones((1, self.length + len(tokens)), dtype=torch.long, device=self.model.device)
        visible[:, : self.padding] = 0
        # Purely recurrent models multiply the new tokens by the mask: it has no other columns.
        return visible[:, self.length :] if self.traits.cache_argument == "cache_params" else visible

    def tree_mask(self, tree: Tree, kind: str, tokens: Tokens) -> Tensor:
        """Return the mask of one kind of layer, in the form that the model's attention requires.

        Args:
            tokens: Tokens of the rows; negative tokens are mask tokens.

        Returns:
            Shape (1, 1, rows, slots).
        """
        prefix = self._prefix_rows(tokens)
        first: Any = self.cache.layers[self.traits.first_layers[kind]]
        width, offset = first.get_mask_sizes(len(tree) + prefix)
        span = self.traits.attention_spans[kind]
        sees = attention_mask(tree, span, length=self.length, offset=int(offset), padding=self.padding)
        if prefix:
            sees = torch.cat([sees, (torch.tensor(tokens) < 0)[:, None].expand(-1, prefix)], dim=1)
        sees = pad(sees, (0, width - sees.shape[1]))  # no row attends to the unused slots of a fixed buffer
        sees = sees[None, None].to(self.model.device)
        return sees if self.traits.takes_boolean_masks else additive_mask(sees, self.model.dtype)

    def _max_depth(self) -> int:
        """Return the maximum depth of a draft that stays within the model's positions and before a rotary switch."""
        root = self.length - self.padding
        ends = [] if self.traits.max_positions is None else [self.traits.max_positions]
        rope = self.traits.rope
        if rope is not None and (rope.dynamic or root < rope.position):
            ends.append(rope.position)
        return max(min(ends, default=sys.maxsize) - 1 - root, 0)

    def _replay(self, tokens: Tokens, fed: int) -> None:
        """Restore the recurrent state from before the draft, and compute the accepted tokens again."""
        self._restore(fed)
        end_recording(self._recording_layers)
        self._run(tokens, EMPTY)

    def _restore(self, fed: int) -> None:
        """Restore the recurrent state from before the last forward pass, and crop the other layers."""
        for layer, states in zip(self._layers, self._snapshot or (), strict=True):
            for name, value in states.items():
                setattr(layer, name, value)
            if states:
                crop_attention(layer, fed)
            else:
                layer.crop(-fed)


def cache_of(model: PreTrainedModel, arguments: dict[str, Any]) -> Cache | None:
    """Return the cache among the arguments of a model's forward; None if there is none.

    Args:
        arguments: Keyword arguments that `generate` of transformers prepared.
    """
    for name in CACHE_ARGUMENTS:
        if name in inspect.signature(model.forward).parameters and isinstance(arguments.get(name), Cache):
            cache: Cache = arguments[name]
            return cache
    return None


def _recurrent_states(cache: Cache) -> list[dict[str, Any]]:
    """Copy the recurrent and convolutional states of every layer. Keys and values need no copy."""
    return [
        {
            name: {index: None if state is None else state.clone() for index, state in getattr(layer, name).items()}
            for name in ("conv_states", "recurrent_states")
            if hasattr(layer, name)
        }
        for layer in cache.layers
    ]
