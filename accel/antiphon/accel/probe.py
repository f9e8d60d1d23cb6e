"""The numeric probe: whether a model verifies what its config promises. Runs short forwards, once for each model."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.accel.cache import CachedModel
from antiphon.accel.draft import EMPTY, ROOT, Draft, Tokens, chain
from antiphon.accel.traits import Traits, declared

PREFIX = 8
BRANCHES = (ROOT, ROOT, 1, 0, 2)  # two branches that lie across each other: no row's depth equals its slot
SEEDS = (0, 1)
NOISES = 3.0
LOUDEST = 0.3
"""In half precision a draft's error may be so many times the model's own noise, and at most so many standard
deviations of its logits: a wrong mask or position costs a real model 0.7 and more."""

_verdicts: WeakKeyDictionary[PreTrainedModel, dict[tuple[object, ...], Traits]] = WeakKeyDictionary()


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


@torch.no_grad()
def _settle(model: PreTrainedModel, traits: Traits) -> Traits:
    if model.training:
        return replace(traits, level="plain", reason="it is in training mode; call model.eval() first")
    if traits.cache_argument is None:
        raise ValueError(f"{type(model).__name__} keeps no key-value cache; decode it with model.generate alone.")
    if traits.level == "tree" and not _holds(model, traits, Draft((0,) * 5, BRANCHES, (1.0,) * 5)):
        traits = replace(traits, level="linear", reason="a branching draft changed its logits in the numeric probe")
    if traits.level in ("linear", "replay") and not _holds(model, traits, chain([0] * 4)):
        return replace(traits, level="plain", reason="tokens fed together gave other logits than one by one")
    return traits


def _holds(model: PreTrainedModel, traits: Traits, shape: Draft) -> bool:
    """Rounding differs from seed to seed, a wrong mask or position never goes away: one good seed is enough."""
    try:
        return any(_error(model, traits, shape, seed) <= _tolerance(model) for seed in SEEDS) or any(
            _error(model, traits, shape, seed) <= _noise(model, traits, len(shape)) for seed in SEEDS
        )
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return False  # a model that cannot even run the shape cannot verify it


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
    plain = _whole if traits.level == "tree" else _one_by_one
    errors = [_distance(again[0], logits[1])]
    for leaf in set(range(len(draft))) - set(draft.parents):
        path = _path(draft, leaf)
        expected = plain(model, traits, tokens[: size + 1], [draft.tokens[row] for row in path])
        errors += [_distance(logits[row + 1], truth) for row, truth in zip([ROOT, *path], expected, strict=True)]
    return max(errors)


def _noise(model: PreTrainedModel, traits: Traits, rows: int) -> float:
    """What rounding alone may do to this model's logits, in the same unit: more, the more layers it has.

    In half precision it is measured, as `NOISES` times the distance between two right ways to compute the same
    tokens. Attention allows that: where state is recurrent, the two ways may differ by more than rounding.
    """
    if traits.level != "tree" or model.dtype not in (torch.float16, torch.bfloat16):
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
    cached = CachedModel(model, replace(traits, level="plain"))
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


def _path(draft: Draft, row: int) -> list[int]:
    path: list[int] = []
    while row != ROOT:
        path.insert(0, row)
        row = draft.parents[row]
    return path


def _distance(logits: Tensor, truth: Tensor) -> float:
    return float((logits - truth).abs().mean() / truth.std())


def _prefix(model: PreTrainedModel) -> int:
    """A few tokens; more than a window that the model applies by itself (GPT-Neo), which shows only beyond it."""
    hidden = getattr(model.config.get_text_config(decoder=True), "window_size", None)
    return PREFIX + hidden if isinstance(hidden, int) else PREFIX


def _tolerance(model: PreTrainedModel) -> float:
    return 1e-3 if model.dtype in (torch.float32, torch.float64) else 0.05
