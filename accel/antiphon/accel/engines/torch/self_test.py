"""The self-test of a model: determine its verification level from the logits of short forward passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.accel.drafting.draft import EMPTY, ROOT, Draft, Tokens, chain, path_to
from antiphon.accel.engines.torch.attention import HALF_DTYPES, varying_shapes
from antiphon.accel.engines.torch.batched_forward import BatchMode, batch_modes, batched_forward
from antiphon.accel.engines.torch.draft_states import follow_drafts
from antiphon.accel.engines.torch.packed_attention import why_not_packed
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.engines.torch.traits import Traits, declared_traits

PREFIX = 8
BRANCHES = (ROOT, ROOT, 1, 0, 2)  # two interleaved branches: no row's depth equals its slot
SEEDS = (0, 1)
FAILURES = (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError)
NOISE_FACTOR = 3.0
MAX_NOISE = 0.3
"""In half precision, the error of a draft's logits may be 3 times the model's own rounding noise,
but at most 0.3 standard deviations. A wrong mask or position causes an error of 0.7 or more."""

_TREE = Draft((0,) * 5, BRANCHES, (1.0,) * 5)

_Error = Callable[[Traits, Draft, int], float]


class SelfTest:
    """Compares draft steps of one model with plain forward passes over the same tokens.

    It detects properties that the config does not show: a model may ignore the mask, infer
    positions from the cache, or round differently if tokens are computed together.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    @torch.no_grad()
    def traits(self) -> Traits:
        """Return the model's traits.

        The declared level is lowered until the logits of a draft tree or chain are right.

        Raises:
            ValueError: The model is not a causal language model with a KV cache.
        """
        traits = declared_traits(self.model)
        if traits.state_kinds:
            follow_drafts(self.model)
        if self.model.training:
            return replace(traits, level="plain", reason="it is in training mode; call model.eval() first")
        if traits.cache_argument is None:
            raise ValueError(f"{type(self.model).__name__} has no KV cache; decode it with model.generate.")
        if traits.level == "tree":
            traits = self._with_packed_attention(traits)
            if not traits.uses_packed_attention and not self._agrees(traits, _TREE, self._error):
                reason = "a branching draft changed its logits in the self-test"
                traits = replace(traits, level="linear", reason=reason)
        if traits.level == "linear" and traits.state_kinds and not self._agrees(traits, chain([0] * 4), self._error):
            reason = f"its layers with state ({', '.join(traits.state_kinds)}) compute that after the last row only"
            traits = replace(traits, level="replay", reason=reason)
        if traits.level in ("linear", "replay") and not self._agrees(traits, chain([0] * 4), self._error):
            return replace(traits, level="plain", reason="tokens fed together gave other logits than one by one")
        return traits

    @torch.no_grad()
    def batch_mode(self, traits: Traits) -> BatchMode | None:
        """Return how the model can batch sequences of different lengths; None if it cannot.

        Batching needs level "tree", no recurrent state, and rotary frequencies that do not depend
        on the longest sequence.
        """
        if traits.level != "tree" or traits.state_kinds or traits.rope is not None:
            return None
        for batch_mode in batch_modes(self.model):
            if self._agrees(traits, _TREE, partial(self._batch_error, batch_mode)):
                return batch_mode
        return None

    def _with_packed_attention(self, traits: Traits) -> Traits:
        """Enable packed attention if it helps, and if a branching draft then has right logits."""
        reason = why_not_packed(self.model)
        packing = replace(traits, uses_packed_attention=True, packing_reason="")
        if reason is None and self._agrees(packing, _TREE, self._error):
            return packing
        return replace(traits, packing_reason=reason or "with it a branching draft changed the logits in the self-test")

    def _agrees(self, traits: Traits, shape: Draft, error: _Error) -> bool:
        """Return whether the error is within the tolerance for at least one seed.

        Rounding errors vary by seed; a wrong mask always fails.
        """
        least, tolerance = float("inf"), 1e-3 if self.model.dtype in (torch.float32, torch.float64) else 0.05
        try:
            for seed in SEEDS:
                least = min(least, error(traits, shape, seed))
                if least <= tolerance:
                    return True
            return least <= self._noise(traits, len(shape))
        except FAILURES:
            return False  # the model cannot run a draft of this shape

    def _sequence(self, traits: Traits) -> TorchSequence:
        return TorchSequence(self.model, traits)

    def _error(self, traits: Traits, shape: Draft, seed: int) -> float:
        """Return the largest error of all rows. A row's error is its logits' mean error in standard deviations."""
        size = _prefix(self.model)
        tokens = self._tokens(len(shape), seed)
        draft = replace(shape, tokens=tuple(tokens[size + 1 :]))
        sequence = self._sequence(traits)
        sequence.prefill(tokens[:size])
        sequence.keep(())
        logits = sequence.forward([tokens[size]], draft).float()
        sequence.keep(())
        again = sequence.forward([draft.tokens[0]], EMPTY).float()  # the cache must hold the root and no draft row
        return max(_distance(again[0], logits[1]), *self._errors(traits, tokens[: size + 1], draft, logits))

    def _batch_error(self, batch_mode: BatchMode, traits: Traits, shape: Draft, seed: int) -> float:
        """Return the largest error, as in `_error`, of three sequences in two batched passes.

        The first pass contains the prefill of one of the sequences.
        """
        tokens = random_tokens(self.model, 3 * PREFIX + 7, seed)
        texts = [tokens[start:end] for start, end in pairwise((0, PREFIX, 2 * PREFIX + 5, 3 * PREFIX + 7))]
        drafts = [replace(shape, tokens=tuple(texts[1][: len(shape)])), chain(texts[0][:3]), EMPTY]
        sequences = [self._sequence(traits) for _ in texts]
        for sequence, text in zip(sequences[:2], texts, strict=False):
            sequence.prefill(text[:-1])
            sequence.keep(())
        errors: list[float] = []
        for _ in range(2):
            fed = [(each, text[each.length :], d) for each, text, d in zip(sequences, texts, drafts, strict=True)]
            found = batched_forward(fed, batch_mode)
            for sequence, text, draft, logits in zip(sequences, texts, drafts, found, strict=True):
                errors += self._errors(traits, text, draft, logits.float())
                path = path_to(draft, len(draft) - 1)
                sequence.keep(path)
                text += [*(draft.tokens[row] for row in path), 1]
            drafts = drafts[1:] + drafts[:1]
        return max(errors)

    def _errors(self, traits: Traits, text: Tokens, draft: Draft, logits: Tensor) -> list[float]:
        """Return the errors of the logits after ``text`` and after every row of a draft below it."""
        is_comparable = traits.level == "tree" and not traits.state_kinds
        plain = self._together if is_comparable else partial(self._one_by_one, traits)
        errors: list[float] = []
        for leaf in set(range(len(draft))) - set(draft.parents) or {ROOT}:
            path = path_to(draft, leaf)
            expected = plain(text, [draft.tokens[row] for row in path])
            errors += [_distance(logits[row + 1], truth) for row, truth in zip([ROOT, *path], expected, strict=True)]
        return errors

    def _noise(self, traits: Traits, rows: int) -> float:
        """Return the error (in the unit of `_error`) that rounding alone can cause in half precision.

        The error grows with the number of layers. It is estimated as `NOISE_FACTOR` times the
        distance between two correct ways to compute the same tokens, but at most `MAX_NOISE`. For
        models with recurrent state the estimate is 0, because there the two ways differ by more
        than rounding.
        """
        if traits.level != "tree" or self.model.dtype not in HALF_DTYPES:
            return 0.0
        distances: list[float] = []
        for seed in SEEDS:
            tokens, size = self._tokens(rows, seed), _prefix(self.model) + 1
            ways = self._together(tokens[:size], tokens[size:]), self._one_by_one(traits, tokens[:size], tokens[size:])
            distances += [_distance(one, other) for one, other in zip(*ways, strict=True)]
        return min(NOISE_FACTOR * max(distances), MAX_NOISE)

    def _together(self, prompt: Tokens, path: Tokens) -> Tensor:
        """Return the logits after the prompt and each token of the path, from one forward pass without a cache."""
        ids = torch.tensor([[*prompt, *path]], device=self.model.device)
        with varying_shapes(self.model):
            logits: Tensor = self.model(ids, use_cache=False).logits
        return logits[0, -1 - len(path) :].float()

    def _one_by_one(self, traits: Traits, prompt: Tokens, path: Tokens) -> Tensor:
        """Return the logits after the prompt and each token of the path, from plain decoding.

        Drafts of models with recurrent state must reproduce these logits.
        """
        sequence = self._sequence(replace(traits, level="plain", uses_packed_attention=False))
        sequence.prefill(prompt[:-1])
        rows: list[Tensor] = []
        for token in [prompt[-1], *path]:
            sequence.keep(())
            rows.append(sequence.forward([token], EMPTY))
        return torch.cat(rows).float()

    def _tokens(self, rows: int, seed: int) -> list[int]:
        """Return random token ids: a prefix, the root, and one for each row."""
        return random_tokens(self.model, _prefix(self.model) + 1 + rows, seed)


def random_tokens(model: PreTrainedModel, size: int, seed: int) -> list[int]:
    """Return random token ids, but never the first id of the vocabulary, which is often padding."""
    vocab_size = model.config.get_text_config(decoder=True).vocab_size
    tokens: list[int] = torch.randint(1, vocab_size, (size,), generator=torch.Generator().manual_seed(seed)).tolist()
    return tokens


def _distance(logits: Tensor, truth: Tensor) -> float:
    return float((logits - truth).abs().mean() / truth.std())


def _prefix(model: PreTrainedModel) -> int:
    """Return a prefix length that exceeds any window inside the model, such as GPT-Neo's."""
    window = getattr(model.config.get_text_config(decoder=True), "window_size", None)
    return PREFIX + window if isinstance(window, int) else PREFIX
