"""The self-test of a model: whether it verifies what its config promises. Runs short forwards and compares logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.accel.drafting.draft import EMPTY, ROOT, Draft, Tokens, chain, path_to
from antiphon.accel.engines.torch.attention import HALF
from antiphon.accel.engines.torch.packed import why_not_packed
from antiphon.accel.engines.torch.ragged import Sharing, forward_together, sharings
from antiphon.accel.engines.torch.sequence import TorchSequence, Weights
from antiphon.accel.engines.torch.traits import Traits, declared

PREFIX = 8
BRANCHES = (ROOT, ROOT, 1, 0, 2)  # two branches that lie across each other: no row's depth equals its slot
SEEDS = (0, 1)
FAILURES = (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError)
NOISES = 3.0
LOUDEST = 0.3
"""In half precision a draft's error may be so many times the model's own noise, and at most so many standard
deviations of its logits: a wrong mask or position costs a real model 0.7 and more."""

_TREE = Draft((0,) * 5, BRANCHES, (1.0,) * 5)

_Error = Callable[[Traits, Draft, int], float]


class SelfTest:
    """Short forwards of one model, held against plain ones of the same tokens.

    It catches what no list of names can: models that ignore a mask, infer positions from the cache, or round
    differently in chunks.
    """

    def __init__(self, model: PreTrainedModel, weights: Weights) -> None:
        self.model = model
        self.weights = weights

    @torch.no_grad()
    def traits(self) -> Traits:
        """What this very model can verify, and why: its declared level, lowered until the numbers agree.

        A small branching draft is compared, then a chain.

        Raises:
            ValueError: the model is not a causal language model with a key-value cache.
        """
        traits = declared(self.model)
        if self.model.training:
            return replace(traits, level="plain", reason="it is in training mode; call model.eval() first")
        if traits.cache_argument is None:
            raise ValueError(
                f"{type(self.model).__name__} keeps no key-value cache; decode it with model.generate alone."
            )
        if traits.level == "tree":
            traits = self._packing(traits)
            if not traits.packs and not self._holds(traits, _TREE, self._error):
                reason = "a branching draft changed its logits in the self-test"
                traits = replace(traits, level="linear", reason=reason)
        if traits.level == "replay" and self._crops(traits):
            traits = replace(traits, level="linear", reason="its state is convolutional alone, which crops as keys do")
        if traits.level in ("linear", "replay") and not self._holds(traits, chain([0] * 4), self._error):
            return replace(traits, level="plain", reason="tokens fed together gave other logits than one by one")
        return traits

    @torch.no_grad()
    def sharing(self, traits: Traits) -> Sharing | None:
        """How texts of different lengths can share this model's forwards, or None where they cannot.

        It takes level *tree*, and rotary frequencies that do not depend on the longest text.
        """
        if traits.level != "tree" or traits.rope is not None:
            return None
        for sharing in sharings(self.model):
            if self._holds(traits, _TREE, partial(self._shared_error, sharing)):
                return sharing
        return None

    def _packing(self, traits: Traits) -> Traits:
        """Let steps be attended by packing where that is of use, and where a branching draft holds with it."""
        reason = why_not_packed(self.model)
        packing = replace(traits, packs=True, packing="")
        if reason is None and self._holds(packing, _TREE, self._error):
            return packing
        return replace(traits, packing=reason or "with it a branching draft changed the logits in the self-test")

    def _holds(self, traits: Traits, shape: Draft, error: _Error) -> bool:
        """Rounding differs from seed to seed, a wrong mask or position never goes away: one good seed is enough."""
        least = float("inf")
        try:
            for seed in SEEDS:
                least = min(least, error(traits, shape, seed))
                if least <= _tolerance(self.model):
                    return True
            return least <= self._noise(traits, len(shape))
        except FAILURES:
            return False  # a model that cannot even run the shape cannot verify it

    def _sequence(self, traits: Traits) -> TorchSequence:
        return TorchSequence(self.model, traits, weights=self.weights)

    def _crops(self, traits: Traits) -> bool:
        """Whether its state can be cropped after all: that of a convolution can, and only a filled cache tells."""
        sequence = self._sequence(traits)
        try:
            sequence.prefill([0] * PREFIX)
        except FAILURES:
            return False
        return sequence.level == "linear"

    def _error(self, traits: Traits, shape: Draft, seed: int) -> float:
        """The mean difference of the draft's logits from plain ones, in standard deviations of the logits."""
        size = _prefix(self.model)
        tokens = self._tokens(len(shape), seed)
        draft = replace(shape, tokens=tuple(tokens[size + 1 :]))
        sequence = self._sequence(traits)
        sequence.prefill(tokens[:size])
        sequence.keep(())
        logits = sequence.forward([tokens[size]], draft).float()
        sequence.keep(())
        again = sequence.forward([draft.tokens[0]], EMPTY).float()  # the rewind left the root, and no row
        return max(_distance(again[0], logits[1]), *self._errors(traits, tokens[: size + 1], draft, logits))

    def _shared_error(self, sharing: Sharing, traits: Traits, shape: Draft, seed: int) -> float:
        """The same for three texts of different lengths that share two forwards; one is read in the first of them."""
        vocabulary = self.model.config.get_text_config(decoder=True).vocab_size
        random = torch.Generator().manual_seed(seed)
        texts = [torch.randint(1, vocabulary, (PREFIX + size,), generator=random).tolist() for size in (0, 5, 2)]
        drafts = [replace(shape, tokens=tuple(texts[1][: len(shape)])), chain(texts[0][:3]), EMPTY]
        sequences = [self._sequence(traits) for _ in texts]
        for sequence, text in zip(sequences[:2], texts, strict=False):
            sequence.prefill(text[:-1])
            sequence.keep(())
        errors: list[float] = []
        for _ in range(2):
            fed = [(each, text[each.length :], d) for each, text, d in zip(sequences, texts, drafts, strict=True)]
            found = forward_together(fed, sharing)
            for sequence, text, draft, logits in zip(sequences, texts, drafts, found, strict=True):
                errors += self._errors(traits, text, draft, logits.float())
                path = path_to(draft, len(draft) - 1)
                sequence.keep(path)
                text += [*(draft.tokens[row] for row in path), 1]
            drafts = drafts[1:] + drafts[:1]
        return max(errors)

    def _errors(self, traits: Traits, text: Tokens, draft: Draft, logits: Tensor) -> list[float]:
        """How far the logits after ``text`` and every row of a draft below it are from plain ones."""
        plain = self._whole if traits.level == "tree" else partial(self._one_by_one, traits)
        errors: list[float] = []
        for leaf in set(range(len(draft))) - set(draft.parents) or {ROOT}:
            path = path_to(draft, leaf)
            expected = plain(text, [draft.tokens[row] for row in path])
            errors += [_distance(logits[row + 1], truth) for row, truth in zip([ROOT, *path], expected, strict=True)]
        return errors

    def _noise(self, traits: Traits, rows: int) -> float:
        """What rounding alone may do to this model's logits, in the same unit: more, the more layers it has.

        In half precision it is measured, as `NOISES` times the distance between two right ways to compute the same
        tokens. Attention allows that: where state is recurrent, the two ways may differ by more than rounding.
        """
        if traits.level != "tree" or self.model.dtype not in HALF:
            return 0.0
        distances: list[float] = []
        for seed in SEEDS:
            tokens, size = self._tokens(rows, seed), _prefix(self.model) + 1
            ways = self._whole(tokens[:size], tokens[size:]), self._one_by_one(traits, tokens[:size], tokens[size:])
            distances += [_distance(one, other) for one, other in zip(*ways, strict=True)]
        return min(NOISES * max(distances), LOUDEST)

    def _whole(self, prompt: Tokens, path: Tokens) -> Tensor:
        """Logits after the prompt and after each token of the path, in one forward without a cache."""
        ids = torch.tensor([[*prompt, *path]], device=self.model.device)
        logits: Tensor = self.model(ids, use_cache=False).logits
        return logits[0, -1 - len(path) :].float()

    def _one_by_one(self, traits: Traits, prompt: Tokens, path: Tokens) -> Tensor:
        """The same logits, decoded as `generate` does: what a chunk of tokens must equal where state is recurrent."""
        sequence = self._sequence(replace(traits, level="plain", packs=False))
        rows = [sequence.prefill(prompt)]
        for token in path:
            sequence.keep(())
            rows.append(sequence.forward([token], EMPTY))
        return torch.cat(rows).float()

    def _tokens(self, rows: int, seed: int) -> list[int]:
        """Random ids: a prefix, the root, and one for each row."""
        vocabulary = self.model.config.get_text_config(decoder=True).vocab_size
        random = torch.Generator().manual_seed(seed)
        size = _prefix(self.model) + 1 + rows
        tokens: list[int] = torch.randint(1, vocabulary, (size,), generator=random).tolist()
        return tokens


def _distance(logits: Tensor, truth: Tensor) -> float:
    return float((logits - truth).abs().mean() / truth.std())


def _prefix(model: PreTrainedModel) -> int:
    """A few tokens; more than a window that the model applies by itself (GPT-Neo), which shows only beyond it."""
    hidden = getattr(model.config.get_text_config(decoder=True), "window_size", None)
    return PREFIX + hidden if isinstance(hidden, int) else PREFIX


def _tolerance(model: PreTrainedModel) -> float:
    return 1e-3 if model.dtype in (torch.float32, torch.float64) else 0.05
