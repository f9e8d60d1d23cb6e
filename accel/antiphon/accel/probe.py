"""The numeric probe: whether a model really verifies what its config promises. Runs a few short forwards, once a model."""

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
BRANCHES = (ROOT, ROOT, 0, 1, 1, 3)  # two branches at two levels, so that no row's depth equals its slot
SEEDS = (0, 1)

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
    if traits.level == "tree" and not _holds(model, traits, Draft((0,) * 6, BRANCHES, (1.0,) * 6)):
        traits = replace(traits, level="linear", reason="a branching draft changed its logits in the numeric probe")
    if traits.level in ("linear", "replay") and not _holds(model, traits, chain([0] * 4)):
        return replace(traits, level="plain", reason="tokens fed together gave other logits than one by one")
    return traits


def _holds(model: PreTrainedModel, traits: Traits, shape: Draft) -> bool:
    """Rounding differs from seed to seed, a wrong mask or position never goes away: one good seed is enough."""
    try:
        return any(_error(model, traits, shape, seed) <= _tolerance(model) for seed in SEEDS)
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return False  # a model that cannot even run the shape cannot verify it


def _error(model: PreTrainedModel, traits: Traits, shape: Draft, seed: int) -> float:
    """The mean difference of the draft's logits from plain decoding's, in standard deviations of the logits."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    random = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, vocabulary, (PREFIX + 1 + len(shape),), generator=random).tolist()
    prefix, root, drafted = tokens[:PREFIX], tokens[PREFIX], tokens[PREFIX + 1 :]
    draft = replace(shape, tokens=tuple(drafted))
    cached = CachedModel(model, traits)
    cached.prefill(prefix)
    cached.keep(())
    logits = cached.forward([root], draft).float()
    cached.keep(())
    again = cached.forward([drafted[0]], EMPTY).float()  # after a rewind: the root stayed, no row did
    plain = {path: _plain(model, traits, [*prefix, root, *path]) for path in _paths(draft)}
    expected = torch.stack([plain[path] for path in _paths(draft)])
    errors = (logits - expected).abs().mean(-1) / expected.std(-1)
    rewound = (again[-1] - plain[(drafted[0],)]).abs().mean() / expected.std()
    return float(torch.cat([errors, rewound[None]]).max())


def _paths(draft: Draft) -> list[tuple[int, ...]]:
    """The tokens from the root's child down to each row; first the root itself, an empty path."""
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        paths.append((*(paths[parent + 1] if parent != ROOT else ()), token))
    return paths


def _plain(model: PreTrainedModel, traits: Traits, tokens: Tokens) -> Tensor:
    """The logits after the last token, decoded as `generate` does: a prefill, then one token at a time."""
    cached = CachedModel(model, replace(traits, level="plain"))
    logits = cached.prefill(tokens[:PREFIX])
    cached.keep(())
    for token in tokens[PREFIX:]:
        logits = cached.forward([token], EMPTY)
        cached.keep(())
    return logits[-1].float()


def _tolerance(model: PreTrainedModel) -> float:
    return 1e-3 if model.dtype in (torch.float32, torch.float64) else 0.05
