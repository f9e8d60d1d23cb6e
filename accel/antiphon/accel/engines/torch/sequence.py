"""The memory of one text in torch: confirmed and drafted tokens go in, and what held is kept. Knows no drafters."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import Cache, DynamicCache, PreTrainedModel

from antiphon.accel.drafting.draft import EMPTY, Draft, Tokens, likeliest_chain, trim
from antiphon.accel.drafting.tree import Tree, plant
from antiphon.accel.engines.torch.attention import EXACT, lent
from antiphon.accel.engines.torch.bita_cache import BitaCache
from antiphon.accel.engines.torch.bita_weights import BitaWeights, embedded
from antiphon.accel.engines.torch.cache_rollback import capacity, commit, end_recording, recorders, rewindable
from antiphon.accel.engines.torch.growing import GrowingLayer, growing_layers, let_grow
from antiphon.accel.engines.torch.masks import additive, mask
from antiphon.accel.engines.torch.packed import PACKED, is_slow_alone
from antiphon.accel.engines.torch.traits import TREE_LAYERS, Traits


class Weights(Protocol):
    """What stands in for a model's layers during a forward."""

    def applied(self) -> AbstractContextManager[None]:
        """In here they do."""


class TorchSequence:
    """An unmodified model with the cache of one text.

    ``forward`` feeds confirmed tokens that have no keys and values yet, and a draft below the last of them; ``keep``
    then makes the accepted rows permanent and drops the rest. Between the two the cache holds every row; after
    ``keep`` it holds exactly the confirmed tokens but the last.

    With ``fixed_rows``, every forward after the prefill is filled up to so many rows, so that its shape says nothing
    of the draft, and attends to each row by itself (`antiphon.accel.engines.torch.attention`).

    Rows of negative tokens are the mask tokens of ``bita``: they are fed as its embeddings, and see its prefix.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        traits: Traits,
        cache: Cache | None = None,
        *,
        padding: int = 0,
        fixed_rows: int = 0,
        bita: BitaWeights | None = None,
        weights: Weights | None = None,
        shares: Callable[[], bool] = lambda: True,
    ) -> None:
        self.model = model
        self.traits = traits
        self.cache = DynamicCache(config=model.config) if cache is None else cache
        let_grow(self.cache)
        self.padding = padding
        self.fixed_rows = fixed_rows
        self.bita = bita and bita.on(model)
        # A row of a fixed shape has to round alike beside any others, which is known of torch's own products alone.
        self.applied = nullcontext if fixed_rows or weights is None else weights.applied
        self._shares = shares
        self._is_simple = not fixed_rows and bita is None and _grows(self.cache)
        self.best: Tensor | None = None  # nobody has taken the argmax of the logits yet
        self.is_open = False  # nothing of the text has been read in here yet
        self.level = traits.level
        self.length = held(self.cache)
        self.capacity = capacity(self.cache)
        self._fed: tuple[Tokens, Draft, int] = ((), EMPTY, 0)
        self._snapshot: list[dict[str, Any]] | None = None
        self._recorders = recorders(self.cache, self.level)

    @property
    def is_shareable(self) -> bool:
        """Whether this text may be one of several in a forward: not under the caller's autocast."""
        device = self.model.device.type
        is_tree = self._is_simple and self.level == "tree"
        return is_tree and not torch.is_autocast_enabled(device) and self._shares()

    def can_open(self, context: Tokens) -> bool:
        """Whether the last token of a prompt may be read with a draft beside it, after all the others.

        Not where the prompt's own shape is part of what is promised: in a bucket, or at a switch of frequencies.
        """
        return (
            self.level == "tree" and not self.fixed_rows and self.traits.rope is None and len(context) > self.length + 1
        )

    def prefill(self, prompt: Tokens, chunk: int | None = None) -> Tensor:
        """Read the prompt, ``chunk`` tokens at a time where given; the logits after its last token, (1, vocab)."""
        end_recording(self.cache.layers)
        size = chunk or max(len(prompt), 1)
        last = (len(prompt) - 1) // size * size
        for start in range(0, last, size):
            self._run(prompt[start : start + size], EMPTY)
            self.length += size
        logits = self._feed(prompt[last:], EMPTY, pads=0)  # the same for every draft as it is
        self.inspect_cache()
        return logits

    def fit(self, draft: Draft, rows: int, depth: int, pending: int = 1) -> Draft:
        """What of a draft can be verified now: ``rows`` rows, ``depth`` levels of guesses, one chain if need be.

        It hangs from the last of so many ``pending`` tokens.
        """
        if self.level == "plain":
            return EMPTY
        draft = draft if self.level == "tree" else likeliest_chain(draft)
        free = sys.maxsize if self.capacity is None else self.capacity - self.length
        free -= pending + (self.bita.prefix if self.bita else 0)
        reach = max(self._reachable() - (pending - 1), 0)
        return trim(draft, min(rows, free), min(depth, reach), reach)

    def forward(self, pending: Tokens, draft: Draft) -> Tensor:
        """Logits after the last pending token and after every draft row, of shape (1 + rows, vocab)."""
        return self._feed(pending, draft, pads=max(self.fixed_rows - len(pending) - len(draft), 0))

    def keep(self, path: Sequence[int]) -> None:
        """Make the pending tokens and the rows of ``path`` permanent; forget the other rows."""
        pending, draft, others = self._fed
        fed, kept = len(pending) + len(draft) + others, len(pending) + len(path)
        if self._snapshot is not None and kept < fed:
            self._replay([*pending, *(draft.tokens[row] for row in path)], fed)
        elif kept < fed and self.level in ("tree", "linear"):
            rows = [*range(len(pending)), *(len(pending) + row for row in path)]
            commit(self.cache, rows, held=self.length, fed=fed)
        end_recording(self._recorders)
        self.length += kept

    def advance(self, tokens: int) -> None:
        """Count tokens that were read elsewhere, and are kept there for now."""
        self.length += tokens

    def take_layers(self) -> list[Any]:
        """Give away what is held; fresh layers stand in its place."""
        layers: list[Any] = self.cache.layers
        self.cache.layers = [*growing_layers(len(layers))]
        return layers

    def put_states(self, states: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Hold the keys and values of every layer again, each of shape (1, heads, tokens, size)."""
        for layer, (keys, values) in zip(self._layers, states, strict=True):
            layer.update(keys, values)

    def restart(self) -> None:
        """Forget everything, after a forward that failed half-way or when the cache has become void."""
        self.cache = DynamicCache(config=self.model.config)
        let_grow(self.cache)
        self.length = 0
        self.capacity = None
        self.is_open = False
        self._snapshot = None
        self._recorders = recorders(self.cache, self.level)

    def is_void(self, context: Tokens) -> bool:
        """Whether the text has just outgrown short-context rotary frequencies, so that the cache is void."""
        rope = self.traits.rope
        return rope is not None and rope.rebuilds and self.length <= rope.position < len(context)

    def inspect_cache(self) -> None:
        """Find out the level, now that the cache has its layers; a warning says what the caller's own one costs."""
        self.is_open = True
        self.level, reason = rewindable(self.cache, self.traits.level)
        self._recorders = recorders(self.cache, self.level)
        if self.level == "plain" != self.traits.level:
            warnings.warn(
                f"This {type(self.cache).__name__} is decoded plainly, without drafts: {reason}. The text is the same; "
                "for speed pass a DynamicCache, a GrowingCache, or a Cache of StaticLayers that are all full ones.",
                stacklevel=2,
            )

    @property
    def _layers(self) -> list[Any]:
        return list(self.cache.layers)

    def record(self, pending: Tokens, draft: Draft, pads: int = 0) -> None:
        """Note what the next forward is fed, so that ``keep`` can take rows of it back."""
        self._fed = (pending, draft, pads + self._shown(draft.tokens))
        if len(draft) or pads:
            for layer in self._recorders:  # until `keep`: prompts and plain steps have nothing to take back
                layer.activate_past_recording()
        self._snapshot = _recurrent(self.cache) if self.level == "replay" and len(draft) else None

    def _feed(self, pending: Tokens, draft: Draft, pads: int) -> Tensor:
        self.record(pending, draft, pads)
        return self._run(pending, draft, pads)

    def _run(self, pending: Tokens, draft: Draft, pads: int = 0) -> Tensor:
        # Only a draft needs its geometry: that of a whole prompt would take memory quadratic in its length.
        tree = plant(len(pending), draft.parents, pads) if len(draft) or pads else None
        depths = torch.arange(len(pending)) if tree is None else torch.from_numpy(tree.depths)
        rows = 1 + len(draft) + pads
        tokens = [*pending, *draft.tokens, *[pending[-1]] * pads]
        arguments = self._inputs(tokens)
        if self.traits.keeps_logits:
            arguments["logits_to_keep"] = rows
        if self.traits.takes_positions:
            arguments["position_ids"] = self.positions(depths)[None].to(self.model.device)
        seen = self._mask(tree, tokens)
        with self.applied(), self._attending(tree, len(tokens)):
            outputs = self.model(attention_mask=seen, **arguments)
        logits: Tensor = outputs.logits[0, -rows:][: rows - pads]
        return logits

    def positions(self, depths: Tensor) -> Tensor:
        """The positions of rows that are so far from the first pending token."""
        return (depths + (self.length - self.padding)).clamp_(min=0)

    def _attending(self, tree: Tree | None, rows: int) -> AbstractContextManager[None]:
        """The attention of this forward: the model's own, unless exact or packed attention stands in for it."""
        if self.fixed_rows:
            return lent(self.model, EXACT)
        return lent(self.model, PACKED) if self._packs(tree, rows) else nullcontext()

    def _packs(self, tree: Tree | None, rows: int) -> bool:
        """Whether this forward is attended packed: with a draft, or where a plain step is far faster so."""
        if tree is not None or not self.traits.packs:
            return self.traits.packs
        return rows == 1 and self.level != "plain" and is_slow_alone(self.model.device, self.model.dtype)

    def _inputs(self, tokens: Tokens) -> dict[str, Any]:
        """What is fed, and the cache that it goes to; mask tokens come with what was learned for them."""
        name = self.traits.cache_argument or "past_key_values"
        if self.bita is not None and min(tokens) < 0:
            embeddings = embedded(self.model, tokens, self.bita)
            return {"inputs_embeds": embeddings, name: BitaCache(self.cache, self.bita), "use_cache": True}
        return {"input_ids": torch.tensor([tokens], device=self.model.device), name: self.cache, "use_cache": True}

    def _shown(self, tokens: Tokens) -> int:
        """How many learned keys and values lie behind the rows: all of them where a mask token looks."""
        return self.bita.prefix if self.bita is not None and min(tokens, default=0) < 0 else 0

    def _mask(self, tree: Tree | None, tokens: Tokens) -> Tensor | dict[str, Tensor] | None:
        if tree is not None and self.level == "tree":
            masks = {kind: self.tree_mask(tree, kind, tokens) for kind in self.traits.reaches}
            return masks if len(masks) > 1 else next(iter(masks.values()))
        if not self.padding:
            return None  # the causal fast path of transformers
        seen = torch.ones((1, self.length + len(tokens)), dtype=torch.long, device=self.model.device)
        seen[:, : self.padding] = 0
        # Models of recurrent state alone multiply what they are fed by their mask, and remember nothing of the rest.
        return seen[:, self.length :] if self.traits.cache_argument == "cache_params" else seen

    def tree_mask(self, tree: Tree, kind: str, tokens: Tokens) -> Tensor:
        """Who sees what in the layers of one kind, of shape (1, 1, rows, slots), in the form that they take."""
        shown = self._shown(tokens)
        first: Any = self.cache.layers[self.traits.first[kind]]
        width, offset = first.get_mask_sizes(len(tree) + shown)
        sees = mask(tree, self.traits.reaches[kind], length=self.length, offset=int(offset), padding=self.padding)
        if shown:
            sees = torch.cat([sees, (torch.tensor(tokens) < 0)[:, None].expand(-1, shown)], dim=1)
        sees = pad(sees, (0, width - sees.shape[1]))  # the rest of a fixed buffer: nobody has written there
        sees = sees[None, None].to(self.model.device)
        return sees if self.traits.takes_booleans else additive(sees, self.model.dtype)

    def _reachable(self) -> int:
        """How deep a draft may go: not past the model's positions, nor over a switch of rotary frequencies."""
        root = self.length - self.padding
        ends = [] if self.traits.positions is None else [self.traits.positions]
        rope = self.traits.rope
        if rope is not None and (rope.dynamic or root < rope.position):
            ends.append(rope.position)
        return max(min(ends, default=sys.maxsize) - 1 - root, 0)

    def _replay(self, tokens: Tokens, fed: int) -> None:
        """Put the recurrent state back to before the draft and run only what was accepted."""
        for layer, states in zip(self._layers, self._snapshot or (), strict=True):
            for name, value in states.items():
                setattr(layer, name, value)
            if not states:
                layer.crop(-fed)
            elif getattr(layer, "keys", None) is not None:  # its own crop would want to crop the state as well
                layer.keys, layer.values = layer.keys[..., :-fed, :], layer.values[..., :-fed, :]
        end_recording(self._recorders)
        self._run(tokens, EMPTY)


def cache_of(model: PreTrainedModel, arguments: dict[str, Any]) -> Cache | None:
    """The cache among the arguments that `generate` prepared for a model's forward."""
    for name in ("past_key_values", "cache_params"):
        if name in inspect.signature(model.forward).parameters and isinstance(arguments.get(name), Cache):
            cache: Cache = arguments[name]
            return cache
    return None


def held(cache: Cache) -> int:
    """How many tokens a cache holds; 0 where it keeps recurrent state alone, which does not count them."""
    return int(cache.get_seq_length()) if any(hasattr(layer, "keys") for layer in cache.layers) else 0


def _grows(cache: Cache) -> bool:
    """Whether it is a cache of one text, all of whose layers append in memory of their own."""
    kinds = {type(layer).__name__ for layer in cache.layers}
    return kinds <= TREE_LAYERS | {GrowingLayer.__name__} and not getattr(cache, "offloading", False)


def _recurrent(cache: Cache) -> list[dict[str, Any]]:
    """A copy of every layer's recurrent and convolutional state; keys and values are only ever appended to."""
    return [
        {
            name: {index: None if state is None else state.clone() for index, state in getattr(layer, name).items()}
            for name in ("conv_states", "recurrent_states")
            if hasattr(layer, name)
        }
        for layer in cache.layers
    ]
