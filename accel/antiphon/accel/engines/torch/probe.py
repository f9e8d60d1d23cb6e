"""The numeric probe: whether a model verifies what its config promises. Runs short forwards, once for each model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.accel.drafting.draft import EMPTY, ROOT, Draft, Tokens, chain, path_to
from antiphon.accel.engines.torch.batched_model import BatchedModel
from antiphon.accel.engines.torch.cache import CachedModel
from antiphon.accel.engines.torch.packed import obstacle
from antiphon.accel.engines.torch.traits import HALF, Traits, declared

PREFIX = 8
BRANCHES = (ROOT, ROOT, 1, 0, 2)  # two branches that lie across each other: no row's depth equals its slot
SEEDS = (0, 1)
FAILURES = (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError)
NOISES = 3.0
LOUDEST = 0.3
"""In half precision a draft's error may be so many times the model's own noise, and at most so many standard
deviations of its logits: a wrong mask or position costs a real model 0.7 and more."""

_TREE = Draft((0,) * 5, BRANCHES, (1.0,) * 5)

_Error = Callable[[PreTrainedModel, Traits, Draft, int], float]

_verdicts: WeakKeyDictionary[PreTrainedModel, dict[tuple[object, ...], Traits]] = WeakKeyDictionary()
_together: WeakKeyDictionary[PreTrainedModel, dict[tuple[object, ...], bool]] = WeakKeyDictionary()


def traits_of(model: PreTrainedModel) -> Traits:
    """What this very model can verify, and why: its declared level, lowered until the numbers agree.

    The probe compares a small branching draft, then a chain, with plain forwards of the same tokens. It catches what
    no list of names can: models that ignore a mask, infer positions from the cache, or round differently in chunks.
    The verdict is cached for as long as the model lives, per attention implementation, dtype and mode.

    Raises:
        ValueError: the model is not a causal language model with a key-value cache.
    """
    traits = declared(model)
    key = (traits.implementation, model.dtype, model.training)
    known = _verdicts.setdefault(model, {})
    if key not in known:
        known[key] = _settle(model, traits)
    return known[key]


def shares_forwards(model: PreTrainedModel) -> bool:
    """Whether texts of different lengths can share this model's forwards, found by trying it, once for each model.

    It takes level *tree*, and rotary frequencies that do not depend on the longest text.
    """
    traits = traits_of(model)
    key = (traits.implementation, model.dtype, model.training)
    known = _together.setdefault(model, {})
    if key not in known:
        known[key] = traits.level == "tree" and traits.rope is None and _holds(model, traits, _TREE, _ragged_error)
    return known[key]


@torch.no_grad()
def _settle(model: PreTrainedModel, traits: Traits) -> Traits:
    if model.training:
        return replace(traits, level="plain", reason="it is in training mode; call model.eval() first")
    if traits.cache_argument is None:
        raise ValueError(f"{type(model).__name__} keeps no key-value cache; decode it with model.generate alone.")
    if traits.level == "tree":
        traits = _packing(model, traits)
        if not traits.packs and not _holds(model, traits, _TREE, _error):
            traits = replace(traits, level="linear", reason="a branching draft changed its logits in the numeric probe")
    if traits.level == "replay" and _crops(model, traits):
        traits = replace(traits, level="linear", reason="its state is convolutional alone, which crops as keys do")
    if traits.level in ("linear", "replay") and not _holds(model, traits, chain([0] * 4), _error):
        return replace(traits, level="plain", reason="tokens fed together gave other logits than one by one")
    return traits


def _packing(model: PreTrainedModel, traits: Traits) -> Traits:
    """Let steps be attended by packing where that is of use, and where a branching draft holds with it."""
    reason = obstacle(model)
    packing = replace(traits, packs=True, packing="")
    if reason is None and _holds(model, packing, _TREE, _error):
        return packing
    return replace(traits, packing=reason or "with it a branching draft changed the logits in the numeric probe")


def _holds(model: PreTrainedModel, traits: Traits, shape: Draft, error: _Error) -> bool:
    """Rounding differs from seed to seed, a wrong mask or position never goes away: one good seed is enough."""
    least = float("inf")
    try:
        for seed in SEEDS:
            least = min(least, error(model, traits, shape, seed))
            if least <= _tolerance(model):
                return True
        return least <= _noise(model, traits, len(shape))
    except FAILURES:
        return False  # a model that cannot even run the shape cannot verify it


def _crops(model: PreTrainedModel, traits: Traits) -> bool:
    """Whether its state can be cropped after all: that of a convolution can, and only a filled cache tells."""
    cached = CachedModel(model, traits)
    try:
        cached.prefill([0] * PREFIX)
    except FAILURES:
        return False
    return cached.level == "linear"


def _error(model: PreTrainedModel, traits: Traits, shape: Draft, seed: int) -> float:
    """The mean difference of the draft's logits from plain ones, in standard deviations of the logits."""
    size = _prefix(model)
    tokens = _tokens(model, len(shape), seed)
    draft = replace(shape, tokens=tuple(tokens[size + 1 :]))
    cached = CachedModel(model, traits)
    cached.prefill(tokens[:size])
    cached.keep(())
    logits = cached.forward([tokens[size]], draft).float()
    cached.keep(())
    again = cached.forward([draft.tokens[0]], EMPTY).float()  # the rewind left the root, and no row
    return max(_distance(again[0], logits[1]), *_errors(model, traits, tokens[: size + 1], draft, logits))


@torch.no_grad()
def _ragged_error(model: PreTrainedModel, traits: Traits, shape: Draft, seed: int) -> float:
    """The same for three texts that begin and grow to different lengths, in two forwards of a batch."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    random = torch.Generator().manual_seed(seed)
    texts = [torch.randint(1, vocabulary, (PREFIX + size,), generator=random).tolist() for size in (0, 5, 2)]
    drafts = [replace(shape, tokens=tuple(texts[1][: len(shape)])), EMPTY, chain(texts[0][:3])]
    batched = BatchedModel(model, traits)
    batched.admit([text[:-1] for text in texts])
    errors: list[float] = []
    for _ in range(2):
        rows = batched.forward([text[-1] for text in texts], drafts)
        for text, draft, logits in zip(texts, drafts, rows, strict=True):
            errors += _errors(model, traits, text, draft, logits.float())
        paths = [path_to(draft, len(draft) - 1) for draft in drafts]
        batched.keep(paths)
        for text, draft, path in zip(texts, drafts, paths, strict=True):
            text += [*(draft.tokens[row] for row in path), 1]
        drafts = drafts[1:] + drafts[:1]
    return max(errors)


def _errors(model: PreTrainedModel, traits: Traits, text: Tokens, draft: Draft, logits: Tensor) -> list[float]:
    """How far the logits after ``text`` and every row of a draft below it are from plain ones."""
    plain = _whole if traits.level == "tree" else _one_by_one
    errors: list[float] = []
    for leaf in set(range(len(draft))) - set(draft.parents) or {ROOT}:
        path = path_to(draft, leaf)
        expected = plain(model, traits, text, [draft.tokens[row] for row in path])
        errors += [_distance(logits[row + 1], truth) for row, truth in zip([ROOT, *path], expected, strict=True)]
    return errors


def _noise(model: PreTrainedModel, traits: Traits, rows: int) -> float:
    """What rounding alone may do to this model's logits, in the same unit: more, the more layers it has.

    In half precision it is measured, as `NOISES` times the distance between two right ways to compute the same
    tokens. Attention allows that: where state is recurrent, the two ways may differ by more than rounding.
    """
    if traits.level != "tree" or model.dtype not in HALF:
        return 0.0
    distances: list[float] = []
    for seed in SEEDS:
        tokens = _tokens(model, rows, seed)
        prompt, path = tokens[: _prefix(model) + 1], tokens[_prefix(model) + 1 :]
        ways = _whole(model, traits, prompt, path), _one_by_one(model, traits, prompt, path)
        distances += [_distance(one, other) for one, other in zip(*ways, strict=True)]
    return min(NOISES * max(distances), LOUDEST)


def _whole(model: PreTrainedModel, traits: Traits, prompt: Tokens, path: Tokens) -> Tensor:
    """Logits after the prompt and after each token of the path, in one forward without a cache."""
    logits: Tensor = model(torch.tensor([[*prompt, *path]], device=model.device), use_cache=False).logits
    return logits[0, -1 - len(path) :].float()


def _one_by_one(model: PreTrainedModel, traits: Traits, prompt: Tokens, path: Tokens) -> Tensor:
    """The same logits, decoded as `generate` does: what a chunk of tokens must equal where state is recurrent."""
    cached = CachedModel(model, replace(traits, level="plain", packs=False))
    rows = [cached.prefill(prompt)]
    for token in path:
        cached.keep(())
        rows.append(cached.forward([token], EMPTY))
    return torch.cat(rows).float()


def _tokens(model: PreTrainedModel, rows: int, seed: int) -> list[int]:
    """Random ids: a prefix, the root, and one for each row."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    random = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(1, vocabulary, (_prefix(model) + 1 + rows,), generator=random).tolist()
    return tokens


def _distance(logits: Tensor, truth: Tensor) -> float:
    return float((logits - truth).abs().mean() / truth.std())


def _prefix(model: PreTrainedModel) -> int:
    """A few tokens; more than a window that the model applies by itself (GPT-Neo), which shows only beyond it."""
    hidden = getattr(model.config.get_text_config(decoder=True), "window_size", None)
    return PREFIX + hidden if isinstance(hidden, int) else PREFIX


def _tolerance(model: PreTrainedModel) -> float:
    return 1e-3 if model.dtype in (torch.float32, torch.float64) else 0.05
