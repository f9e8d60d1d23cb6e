"""The self-test: whether the graph says what the model says, in every way in which forwards will be asked of it.

Knows an engine and a function that gives plain logits; not how either computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from antiphon.accel.drafting.draft import EMPTY, ROOT, Draft, Tokens, chain, path_to
from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.openvino.sequence import PagedSequence
from antiphon.accel.engines.protocol import SequenceInput, Tenant

SHORT, LONG = 8, 40
"""Tokens of a text that is shorter than most windows, and how far another one goes beyond the largest."""

BRANCHES = (ROOT, ROOT, 1, 0, 2)
"""Two branches that lie across each other: no row's depth equals its slot."""

FARTHEST = 1024
"""Windows that are larger are tried as far as this: a forward over more would take seconds."""

SINGLE, NOISES, LEAST, LOUDEST = 1e-3, 3.0, 0.15, 0.3
"""The mean difference that is allowed, in standard deviations of the logits: so much in float32; in half precision so
many times the model's own noise, or the least of it, and at most the loudest: a wrong mask or position costs 0.7."""

Plain = Callable[[Tokens], NDArray[np.float32]]
"""The model's logits after every token of a text, (tokens, vocab), from one forward without a cache."""


@dataclass(frozen=True, slots=True)
class SelfTestFinding:
    """How far one kind of forward was from the model's, and how far it may be; in standard deviations."""

    what: str
    apart: float
    allowed: float

    @property
    def agrees(self) -> bool:
        """Whether that is rounding."""
        return self.apart <= self.allowed

    def __str__(self) -> str:
        return f"{self.what}: {self.apart:.2g} standard deviations apart, {self.allowed:.2g} allowed"


def findings(
    engine: OpenVINOEngine, model: PreTrainedModel, windows: Sequence[int], *, compressed: float | None = None
) -> list[SelfTestFinding]:
    """Compare prefill, tree, chain, what was kept of them, and two texts in one forward with plain forwards.

    Every comparison is of a text shorter than every window, and of one that is longer than the largest. Whoever calls
    this holds the engine's lock. A graph whose weights are ``compressed`` is held against its own prefills instead, as
    closely, and these against the model's, from which they may be so far.
    """
    truth = plain = _plain(model)
    allowed = SINGLE if model.dtype == torch.float32 else _noise(model, truth)
    far = LONG + min(max(windows, default=0), FARTHEST)
    texts = {name: _text(model, size) for name, size in (("a short text", SHORT), ("a long text", far))}
    found: list[SelfTestFinding] = []
    if compressed is not None:
        plain = _prefilled(engine)
        for name, text in texts.items():
            apart = _apart(plain(text)[-1:], truth(text)[-1:])
            found.append(SelfTestFinding(f"the prefill of {name}, by the whole weights", apart, compressed))
    for name, text in texts.items():
        found += [SelfTestFinding(f"{what} of {name}", apart, allowed) for what, apart in _alone(engine, plain, text)]
    found.append(SelfTestFinding("two texts in one forward", _together(engine, plain, list(texts.values())), allowed))
    return found


def _alone(engine: OpenVINOEngine, plain: Plain, text: list[int]) -> list[tuple[str, float]]:
    """A text by itself: read, drafted for twice, and gone on from what was kept."""
    sequence = engine.sequence(tenant=Tenant())
    logits = engine.forward([SequenceInput(sequence, text)])[0]
    sequence.keep(())
    found = [("the prefill", _apart(logits.tensor().numpy(), plain(text)[-1:]))]
    tree = Draft(tuple(text[:5]), BRANCHES, (1.0,) * 5)
    for what, draft in (("a tree", tree), ("a chain", chain(text[:4]))):
        apart, text = _step(engine, plain, sequence, text, draft)
        found.append((what, apart))
    apart, _ = _step(engine, plain, sequence, text, EMPTY)
    return [*found, ("what was kept", apart)]


def _step(
    engine: OpenVINOEngine, plain: Plain, sequence: PagedSequence, text: list[int], draft: Draft
) -> tuple[float, list[int]]:
    """One forward with a draft, of which the path to the last row is kept: how far it was, and the text after it."""
    fed = sequence.fit(draft, len(draft), len(draft))
    text = [*text, text[0]]
    logits = engine.forward([SequenceInput(sequence, text[-1:], fed)])[0]
    apart = _draft_apart(logits.tensor().numpy(), plain, text, fed)
    path = path_to(fed, len(fed) - 1)
    sequence.keep(path)
    return apart, [*text, *(fed.tokens[row] for row in path)]


def _together(engine: OpenVINOEngine, plain: Plain, texts: Sequence[list[int]]) -> float:
    """Texts of different lengths with different drafts, which are read together as well."""
    sequences = [engine.sequence(tenant=Tenant()) for _ in texts]
    drafts = [Draft(tuple(texts[0][:5]), BRANCHES, (1.0,) * 5), *[chain(text[:3]) for text in texts[1:]]]
    engine.forward([SequenceInput(sequence, text[:-1]) for sequence, text in zip(sequences, texts, strict=True)])
    for sequence in sequences:
        sequence.keep(())
    fitted = [sequence.fit(draft, 9, 9) for sequence, draft in zip(sequences, drafts, strict=True)]
    feeds = [SequenceInput(*each) for each in zip(sequences, [text[-1:] for text in texts], fitted, strict=True)]
    answers = engine.forward(feeds)
    return max(
        _draft_apart(logits.tensor().numpy(), plain, text, draft)
        for logits, text, draft in zip(answers, texts, fitted, strict=True)
    )


def _draft_apart(logits: NDArray[np.float32], plain: Plain, text: list[int], draft: Draft) -> float:
    """The largest distance of any path through a draft from the plain forward of its tokens."""
    apart: list[float] = []
    for leaf in set(range(len(draft))) - set(draft.parents) or {ROOT}:
        path = path_to(draft, leaf)
        truth = plain([*text, *(draft.tokens[row] for row in path)])[-1 - len(path) :]
        apart.append(_apart(logits[[0, *(row + 1 for row in path)]], truth))
    return max(apart)


def _apart(logits: NDArray[np.float32], truth: NDArray[np.float32]) -> float:
    """The mean difference of the worst row, in standard deviations of the logits; infinite where one is no number."""
    apart = float(np.abs(logits - truth).mean(axis=1).max() / truth.std())
    return apart if np.isfinite(apart) else float("inf")


def _noise(model: PreTrainedModel, plain: Plain) -> float:
    """What rounding alone does to this model's logits: its texts read at once, and alone."""
    text = _text(model, SHORT)
    distances = [_apart(plain(text)[:size][-1:], plain(text[:size])[-1:]) for size in (SHORT // 2, SHORT - 1)]
    return min(max(NOISES * max(distances), LEAST), LOUDEST)


def _plain(model: PreTrainedModel) -> Plain:
    @torch.no_grad()
    def plain(text: Tokens) -> NDArray[np.float32]:
        logits: torch.Tensor = model(torch.tensor([list(text)], device=model.device), use_cache=False).logits
        return logits[0].float().numpy()

    return plain


def _prefilled(engine: OpenVINOEngine) -> Plain:
    """The engine's own prefills of a text, of as many of its last tokens as a draft has rows and one more."""

    def prefill(text: Tokens) -> NDArray[np.float32]:
        sequence = engine.sequence(tenant=Tenant())
        logits: NDArray[np.float32] = engine.forward([SequenceInput(sequence, text)])[0].tensor().numpy()
        sequence.reset()
        last: NDArray[np.float32] = logits[-1]
        return last

    return lambda text: np.stack([prefill(text[: end + 1]) for end in range(len(text))[-1 - len(BRANCHES) :]])


def _text(model: PreTrainedModel, size: int) -> list[int]:
    """Random ids: what they mean does not matter, but they should differ."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    tokens: list[int] = torch.randint(1, vocabulary, (size,), generator=torch.Generator().manual_seed(size)).tolist()
    return tokens
