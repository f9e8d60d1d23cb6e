"""The self-test: compare the graph's logits with the model's for every kind of forward pass.

It only needs an engine and a function that returns reference logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from antiphon.accel.drafting.draft import EMPTY, ROOT, Draft, Logits, Tokens, chain, path_to
from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.openvino.sequence import PagedSequence
from antiphon.accel.engines.protocol import AnonymousTenant, SequenceInput
from antiphon.accel.engines.torch.self_test import random_tokens

SHORT, LONG, ADDED = 8, 40, 12
"""The short text has `SHORT` tokens, fewer than most windows. The long text has `LONG` tokens more
than the largest window, but is shorter by `ADDED` than the texts for which the graph is right,
because the steps append tokens."""

BRANCHES = (ROOT, ROOT, 1, 0, 2)
"""Parents of a tree of two interleaved branches: no row's depth equals its slot."""

MAX_WINDOW = 1024
"""Windows above this size are not tested with a longer text, because its forward passes would take seconds."""

FLOAT32_TOLERANCE = 1e-3
"""Allowed mean difference in float32, in standard deviations of the logits."""

ARGMAX_TOLERANCE = 1e-3
"""Maximum difference of the largest logit from the logit of `argmax`, in standard deviations."""

NOISE_FACTOR, MIN_TOLERANCE, MAX_TOLERANCE = 3.0, 0.15, 0.3
"""Allowed mean difference in half precision: a multiple of the model's own rounding noise, within these limits.

A wrong mask or position causes a difference of 0.7.
"""

ReferenceLogits = Callable[[Tokens], NDArray[np.float32]]
"""Returns the logits after every token of a text, shape (tokens, vocab), without a KV cache."""


@dataclass(frozen=True, slots=True)
class SelfTestFinding:
    """The result of one comparison.

    Attributes:
        distance: Largest mean difference of a row, in standard deviations of the logits.
    """

    name: str
    distance: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        """Whether the difference can be explained by rounding."""
        return self.distance <= self.tolerance

    def __str__(self) -> str:
        return f"{self.name}: {self.distance:.2g} standard deviations apart, {self.tolerance:.2g} allowed"


def run_self_test(
    engine: OpenVINOEngine, model: PreTrainedModel, windows: Sequence[int], *, max_compression: float | None = None
) -> list[SelfTestFinding]:
    """Compare the logits of the engine with the logits of the model.

    The passes are a prefill, a tree, a chain, a step after kept rows, and a shared forward pass.
    Each pass is run with two texts: one shorter than every window, one longer than the largest
    window. The caller holds the engine's lock.

    Args:
        windows: Sliding windows of the model's layers in tokens, 0 for none.
        max_compression: Allowed distance between prefills with compressed weights and with the
            model's own; None: weights are not compressed. With compressed weights, trees and chains
            of a short text are compared with the engine's own prefills. Windows and batches are
            tested with a reduced model.
    """
    model_logits = reference = _uncached_logits(model)
    if model.dtype == torch.float32:
        tolerance = FLOAT32_TOLERANCE
    elif max_compression is not None:  # one pass of the large model, whose weights may not fit into memory, is enough
        tolerance = MAX_TOLERANCE
    else:
        tolerance = _half_precision_tolerance(model, model_logits)
    long = LONG + min(max(windows, default=0), MAX_WINDOW)
    long = long if engine.max_length is None else min(long, engine.max_length - ADDED)
    texts = {name: random_tokens(model, size, size) for name, size in (("a short text", SHORT), ("a long text", long))}
    found: list[SelfTestFinding] = []
    if max_compression is not None:
        reference = _engine_logits(engine)
        text = texts["a long text"]
        compressed = reference(text)
        distance = _mean_distance(compressed, model_logits(text)[-len(compressed) :])
        found.append(SelfTestFinding("prefill with compressed weights", distance, max_compression))
        texts.pop("a long text")  # windows and batches were tested in a reduced model; this one may be large
    for name, text in texts.items():
        found += [
            SelfTestFinding(f"{what} of {name}", distance, tolerance)
            for what, distance in _test_sequence(engine, reference, text)
        ]
    if max_compression is None:
        distance = _test_batch(engine, reference, list(texts.values()))
        found.append(SelfTestFinding("two texts in one forward pass", distance, tolerance))
    return found


def _test_sequence(engine: OpenVINOEngine, reference: ReferenceLogits, text: list[int]) -> list[tuple[str, float]]:
    """Run a prefill, a tree, a chain and a step after the kept rows; return the name and the distance of each."""
    sequence = engine.sequence(tenant=AnonymousTenant())
    logits = engine.forward([SequenceInput(sequence, text)])[0]
    sequence.keep(())
    found = [("prefill", _distance(logits.tensor().numpy(), reference(text)[-1:]))]
    tree = Draft(tuple(text[:5]), BRANCHES, (1.0,) * 5)
    for what, draft in (("tree", tree), ("chain", chain(text[:4]))):
        distance, text = _test_step(engine, reference, sequence, text, draft)
        found.append((what, distance))
    distance, _ = _test_step(engine, reference, sequence, text, EMPTY)
    return [*found, ("kept rows", distance)]


def _test_step(
    engine: OpenVINOEngine, reference: ReferenceLogits, sequence: PagedSequence, text: list[int], draft: Draft
) -> tuple[float, list[int]]:
    """Run a pass with a draft and keep the path to its last row; return distance and new text."""
    fitted = sequence.fit(draft, len(draft), len(draft))
    text = [*text, text[0]]
    logits = engine.forward([SequenceInput(sequence, text[-1:], fitted)])[0]
    wrong = _argmax_distance(logits)  # before `tensor`, after which `argmax` uses exact logits
    distance = max(wrong, _draft_distance(logits.tensor().numpy(), reference, text, fitted))
    path = path_to(fitted, len(fitted) - 1)
    sequence.keep(path)
    return distance, [*text, *(fitted.tokens[row] for row in path)]


def _test_batch(engine: OpenVINOEngine, reference: ReferenceLogits, texts: Sequence[list[int]]) -> float:
    """Run a shared prefill and a shared step of sequences that differ in length; return the largest distance."""
    sequences = [engine.sequence(tenant=AnonymousTenant()) for _ in texts]
    drafts = [Draft(tuple(texts[0][:5]), BRANCHES, (1.0,) * 5), *[chain(text[:3]) for text in texts[1:]]]
    engine.forward([SequenceInput(sequence, text[:-1]) for sequence, text in zip(sequences, texts, strict=True)])
    for sequence in sequences:
        sequence.keep(())
    fitted = [sequence.fit(draft, 9, 9) for sequence, draft in zip(sequences, drafts, strict=True)]
    inputs = [SequenceInput(*each) for each in zip(sequences, [text[-1:] for text in texts], fitted, strict=True)]
    all_logits = engine.forward(inputs)
    return max(
        _draft_distance(logits.tensor().numpy(), reference, text, draft)
        for logits, text, draft in zip(all_logits, texts, fitted, strict=True)
    )


def _argmax_distance(logits: Logits) -> float:
    """Return 0 if each row's most likely token has the largest logit up to rounding, else infinity."""
    tokens = [logits.argmax(row) for row in range(ROOT, len(logits) - 1)]
    array = logits.tensor().numpy()
    missing = (array.max(axis=1) - array[range(len(array)), tokens]).max()
    return 0.0 if missing <= ARGMAX_TOLERANCE * array.std() else float("inf")


def _draft_distance(logits: NDArray[np.float32], reference: ReferenceLogits, text: list[int], draft: Draft) -> float:
    """Return the largest distance from the reference logits on any path of a draft."""
    distances: list[float] = []
    for leaf in set(range(len(draft))) - set(draft.parents) or {ROOT}:
        path = path_to(draft, leaf)
        truth = reference([*text, *(draft.tokens[row] for row in path)])[-1 - len(path) :]
        distances.append(_distance(logits[[0, *(row + 1 for row in path)]], truth))
    return max(distances)


def _distance(logits: NDArray[np.float32], truth: NDArray[np.float32]) -> float:
    """Return the largest mean difference of a row, in standard deviations of the logits; infinity for NaN."""
    return _finite(np.abs(logits - truth).mean(axis=1).max() / truth.std())


def _mean_distance(logits: NDArray[np.float32], truth: NDArray[np.float32]) -> float:
    """Return the mean difference of all rows in standard deviations of the logits; infinity for NaN."""
    return _finite(np.abs(logits - truth).mean() / truth.std())


def _finite(distance: np.floating[Any]) -> float:
    return float(distance) if np.isfinite(distance) else float("inf")


def _half_precision_tolerance(model: PreTrainedModel, model_logits: ReferenceLogits) -> float:
    """Return the tolerance for rounding: how much the logits of a token change if more tokens are computed after it."""
    text = random_tokens(model, SHORT, SHORT)
    noise = [
        _distance(model_logits(text)[:size][-1:], model_logits(text[:size])[-1:]) for size in (SHORT // 2, SHORT - 1)
    ]
    return min(max(NOISE_FACTOR * max(noise), MIN_TOLERANCE), MAX_TOLERANCE)


def _uncached_logits(model: PreTrainedModel) -> ReferenceLogits:
    @torch.no_grad()
    def logits_of(text: Tokens) -> NDArray[np.float32]:
        logits: torch.Tensor = model(torch.tensor([list(text)], device=model.device), use_cache=False).logits
        return logits[0].float().numpy()

    return logits_of


def _engine_logits(engine: OpenVINOEngine) -> ReferenceLogits:
    """Return a function that prefills a text, and returns the logits after each of the text's last tokens."""

    def prefill(text: Tokens) -> NDArray[np.float32]:
        sequence = engine.sequence(tenant=AnonymousTenant())
        logits: NDArray[np.float32] = engine.forward([SequenceInput(sequence, text)])[0].tensor().numpy()
        sequence.reset()
        last: NDArray[np.float32] = logits[-1]
        return last

    return lambda text: np.stack([prefill(text[: end + 1]) for end in range(len(text))[-1 - len(BRANCHES) :]])
