"""Training: a LoRA adapter by which a sentence encoder, reading question and passage together, tells what answers.

It begins with the adapter of the encoder that reads passages alone, or with one of its own kind, and keeps its
comparisons: with a fresh head instead of them the loss had not fallen after 800 updates. The loss is that of the right
line among those of the passage and none of them, whose weight is 0. Knows no corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from antiphon.accel.files import write_file
from antiphon.pipelines.relevance import HEAD, Head, EncoderInput, encoder_inputs, short_question
from antiphon.pipelines.training.loop import StepReport, train_batches
from antiphon.retrieval import MiniLMEmbedder
from recipes.reader.train import LoraPlan
from recipes.relevance.examples import PairExample
from recipes.relevance.line_encoder import QUICK, LineEncoder, mean_of, means_of, save_line_encoder

_HEAD_QUICK = 400.0  # the head learns so much faster than the weights


def cross_encoder_plan(steps: int, learning_rate: float, seed: int) -> LoraPlan:
    """Updates of 24 pairs of a question and a passage."""
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
    """The encoder with an adapter that begins as another of its rank or a smaller one, the scale, and the head."""

    def __init__(self, tokens: MiniLMEmbedder, plan: LoraPlan, start: Path, *, in_half: bool) -> None:
        super().__init__(tokens, plan, in_half=in_half, start=start)
        self.head = torch.nn.Parameter(_head_of(start, tokens.dim) / _HEAD_QUICK)

    def forward(self, readings: Sequence[tuple[str, EncoderInput]]) -> list[torch.Tensor]:  # type: ignore[override]
        """What `CrossRelevance` gives for the lines of each reading, which begins with its question."""
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


def _head_of(start: Path, dim: int) -> torch.Tensor:
    """The head of an adapter, of shape (2, dim); one that reads passages alone has none, and zeros are as none."""
    if not (start / HEAD).exists():
        return torch.zeros(2, dim)
    head = Head.load(start)
    return torch.stack([torch.from_numpy(head.line), torch.from_numpy(head.word)])


PairSource = Callable[[int], Sequence[PairExample]]
"""Gives the pairs of a number, always the same."""


def train_cross_encoder(
    model: CrossEncoder,
    pairs: PairSource,
    out: Path,
    plan: LoraPlan,
    *,
    report: StepReport = lambda step, loss: None,
) -> Path:
    """Train adapter, scale and head, and save them in ``out``; a run that was cut off goes on there.

    Raises:
        ValueError: ``out`` holds a checkpoint of another plan.
    """

    def loss(module: Any, number: int) -> torch.Tensor:
        return cross_encoder_loss(module, model.tokens, pairs(number))

    return train_batches(model, plan, loss, out, save=save_cross_encoder, report=report)


def save_cross_encoder(model: CrossEncoder, out: Path) -> None:
    """The adapter in bfloat16, in peft's format, the scale, and the head."""
    save_line_encoder(model, out)
    line, word = (_HEAD_QUICK * model.head.detach()).cpu()
    write_file(out / HEAD, save({"line": line.clone(), "word": word.clone()}), mode=None)


def cross_encoder_loss(model: Any, tokens: MiniLMEmbedder, pairs: Sequence[PairExample]) -> torch.Tensor:
    """The mean loss of the pairs, in nats.

    A passage is read once, as far as the encoder reads; where what answers lies beyond that, nothing is learned.
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
    """The question as it is read, and the passage behind it."""
    asked = short_question(one.question, tokens)
    return asked, next(encoder_inputs(one.passage, tokens, asked, without=one.without))
