"""Trains a LoRA adapter for a sentence encoder that encodes question and passage together and scores lines.

It starts from an adapter of the line encoder or of a cross-encoder, and keeps the two comparisons: with a new head
instead, the loss had not fallen after 800 updates. The loss is that of the right line among those of the passage and
"none of them", whose score is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from antiphon.pipelines.relevance import EncoderInput, Head, encoder_inputs, short_question
from antiphon.retrieval import MiniLMEmbedder
from recipes.reader.train import LoraPlan
from recipes.relevance.examples import PairExample
from recipes.relevance.line_encoder import QUICK, LineEncoder, mean_of, means_of, save_line_encoder
from recipes.training_loop import StepReport, train_batches

_HEAD_QUICK = 400.0  # the head's learning rate relative to the adapter's


def cross_encoder_plan(steps: int, learning_rate: float, seed: int) -> LoraPlan:
    """Return a plan with 24 pairs per update.

    Args:
        steps: Number of updates.
        learning_rate: Peak learning rate.
        seed: Random seed.
    """
    return LoraPlan(
        steps=steps,
        batch_size=24,
        learning_rate=learning_rate,
        warm_up=50,
        decay=0.6,
        rank=32,
        alpha=64,
        seed=seed,
        save_every=100,
    )


class CrossEncoder(LineEncoder):
    """The encoder with a trainable adapter, the scale of the two comparisons, and the head.

    Args:
        tokens: Tokenizes texts.
        plan: Training plan.
        start: Adapter to start from, of the same or a smaller rank.
        in_half: Whether to compute in bfloat16.
    """

    def __init__(self, tokens: MiniLMEmbedder, plan: LoraPlan, start: Path, *, in_half: bool) -> None:
        super().__init__(tokens, plan, in_half=in_half, start=start)
        head = Head.load(start)
        vectors = torch.stack([torch.from_numpy(head.line), torch.from_numpy(head.word)])
        self.head = torch.nn.Parameter(vectors / _HEAD_QUICK)

    def head_tensors(self) -> dict[str, torch.Tensor]:
        """Return the fields of `Head`."""
        line, word = (_HEAD_QUICK * self.head.detach()).cpu()
        return super().head_tensors() | {"line": line.clone(), "word": word.clone()}

    def forward(self, readings: Sequence[tuple[str, EncoderInput]]) -> list[torch.Tensor]:  # type: ignore[override]
        """Return the scores of the cross-encoder for the lines of each text, which starts with its question."""
        counts = [len(ids) for ids in self.tokens.token_ids([question for question, _ in readings])]
        read = self._read([reading.text for _, reading in readings])
        return [
            self._weighed(vectors[:count], [vectors[start:end] for _, start, end in reading.spans])
            for vectors, count, (_, reading) in zip(read, counts, readings, strict=True)
        ]

    def _weighed(self, question: torch.Tensor, lines: Sequence[torch.Tensor]) -> torch.Tensor:
        if not lines:
            return self.weights[:0]
        line_head, word_head = _HEAD_QUICK * self.head
        whole = means_of(lines) @ means_of([question])[0]
        words = torch.stack([mean_of((question @ line.T).amax(dim=1)) for line in lines])
        looks = torch.stack([mean_of(line @ line_head) + (line @ word_head).amax() for line in lines])
        weights = QUICK * self.weights
        return weights[0] * whole + weights[1] * words + weights[2] + looks


PairSource = Callable[[int], Sequence[PairExample]]
"""Returns the pairs of the batch with a given number; equal numbers give equal pairs."""


def train_cross_encoder(
    model: CrossEncoder,
    pairs: PairSource,
    out: Path,
    plan: LoraPlan,
    *,
    report: StepReport = lambda step, loss: None,
) -> Path:
    """Train adapter, scale and head, and save them; an interrupted run resumes.

    Args:
        model: The encoder.
        pairs: Returns the pairs of the batch with a given number.
        out: Folder to write to.
        plan: Training plan.
        report: Called with step and loss.

    Raises:
        ValueError: ``out`` holds a checkpoint of another plan.
    """

    def loss(module: Any, number: int) -> torch.Tensor:
        return cross_encoder_loss(module, model.tokens, pairs(number))

    return train_batches(model, plan, loss, out, save=save_line_encoder, report=report)


def cross_encoder_loss(model: Any, tokens: MiniLMEmbedder, pairs: Sequence[PairExample]) -> torch.Tensor:
    """Return the mean loss of the pairs in nats.

    Each passage is encoded once, up to the encoder's maximum length; pairs whose answer is beyond it are skipped.

    Args:
        model: The encoder.
        tokens: Tokenizes texts.
        pairs: Questions and passages.
    """
    readings = [_reading(one, tokens) for one in pairs]
    found = model(readings)
    losses = []
    for one, (_, reading), weights in zip(pairs, readings, found, strict=True):
        right = [place for place, (line, _, _) in enumerate(reading.spans) if line in one.lines]
        if not len(weights) or (one.lines and not right):
            continue
        among_all = torch.cat([torch.zeros_like(weights[:1]), weights]).logsumexp(0)
        losses.append(among_all - weights[right].logsumexp(0) if right else among_all)
    return torch.stack(losses).mean() if losses else 0.0 * torch.cat(found).sum()


def _reading(one: PairExample, tokens: MiniLMEmbedder) -> tuple[str, EncoderInput]:
    """Return the truncated question, and the encoder's input: the question followed by the passage."""
    asked = short_question(one.question, tokens)
    return asked, next(encoder_inputs(one.passage, tokens, asked, without=one.without))
