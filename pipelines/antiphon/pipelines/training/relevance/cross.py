"""Training: a LoRA adapter by which a sentence encoder, reading question and passage together, tells what answers.

It begins with the adapter of the encoder that reads passages alone, whose comparisons it keeps: with a fresh head instead
of them the loss had not fallen after 800 updates. The loss is that of the right line among the passage's and none of them, whose
weight is 0. Knows no corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from antiphon.accel.files import write
from antiphon.pipelines.relevance import ASKED, HEAD, Reading, Scale, readings_of
from antiphon.pipelines.training.loop import StepReport, teach
from antiphon.pipelines.training.reader.train import ReaderPlan
from antiphon.pipelines.training.relevance.examples import Pair
from antiphon.pipelines.training.relevance.train import QUICK, RelevanceModel, mean_of, means_of, save_relevance
from antiphon.retrieval import MiniLMEmbedder

_HEAD_QUICK = 400.0  # the head learns so much faster than the weights
_ADAPTER = "adapter_model.safetensors"


def plan_cross(steps: int, learning_rate: float, seed: int) -> ReaderPlan:
    """Updates of 24 pairs of a question and a passage."""
    return ReaderPlan(
        steps=steps,
        lessons=24,
        learning_rate=learning_rate,
        warm_up=50,
        decay=0.6,
        rank=32,
        alpha=64,
        seed=seed,
        save_every=100,
    )


class CrossModel(RelevanceModel):
    """The encoder with an adapter that begins as another of half its rank, the scale, and the head."""

    def __init__(self, tokens: MiniLMEmbedder, plan: ReaderPlan, start: Path, *, in_half: bool) -> None:
        super().__init__(tokens, plan, in_half=in_half)
        self.head = torch.nn.Parameter(torch.zeros(2, tokens.dim))
        scale = Scale.load(start)
        with torch.no_grad():
            self.weights.copy_(torch.tensor([scale.whole, scale.words, scale.bias]) / QUICK)
            _begin_with(self.encoder, load((start / _ADAPTER).read_bytes()))

    def forward(self, readings: Sequence[tuple[str, Reading]]) -> list[torch.Tensor]:  # type: ignore[override]
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


def _begin_with(model: Any, start: dict[str, torch.Tensor]) -> None:
    """Copy a smaller adapter, of the same alpha for each rank, into a fresh one: the product stays what it was."""
    weights = model.state_dict()
    for name, weight in start.items():
        part = weights[name.replace(".weight", ".default.weight")]
        if part.shape[0] >= weight.shape[0] and part.shape[1] == weight.shape[1]:
            part[: weight.shape[0]] = weight.float()
        else:
            part.zero_()
            part[:, : weight.shape[1]] = weight.float()


PairsOf = Callable[[int], Sequence[Pair]]
"""Gives the pairs of a number, always the same."""


def train_cross(
    model: CrossModel,
    pairs: PairsOf,
    out: Path,
    plan: ReaderPlan,
    *,
    report: StepReport = lambda step, loss: None,
) -> Path:
    """Train adapter, scale and head, and save them in ``out``; a run that was cut off goes on there.

    Raises:
        ValueError: ``out`` holds a checkpoint of another plan.
    """
    out.mkdir(parents=True, exist_ok=True)

    def parts(module: Any, step: int, process: int, processes: int) -> Iterator[torch.Tensor]:
        yield cross_loss(module, model.tokens, pairs(step * processes + process)) / processes

    return teach(model, plan, parts, out, save=save_cross, report=report)


def save_cross(model: CrossModel, out: Path) -> None:
    """The adapter in bfloat16, in peft's format, the scale, and the head."""
    save_relevance(model, out)
    line, word = (_HEAD_QUICK * model.head.detach()).cpu()
    write(out / HEAD, save({"line": line.clone(), "word": word.clone()}), is_needed=True, is_private=False)


def cross_loss(model: Any, tokens: MiniLMEmbedder, pairs: Sequence[Pair]) -> torch.Tensor:
    """The mean loss of the pairs, in nats; what is answered beyond the encoder's reach is left out."""
    readings = [(_short(one.question), _reading(one, tokens)) for one in pairs]
    losses = []
    for one, (_, reading), weights in zip(pairs, readings, model(readings), strict=True):
        right = [place for place, (line, _, _) in enumerate(reading.spans) if line in one.lines]
        among_all = torch.cat([torch.zeros_like(weights[:1]), weights]).logsumexp(0) if len(weights) else None
        if among_all is None or (one.lines and not right):
            continue
        losses.append(among_all - weights[right].logsumexp(0) if right else among_all)
    return torch.stack(losses).mean() if losses else model([*readings[:1]])[0].sum()


def _reading(one: Pair, tokens: MiniLMEmbedder) -> Reading:
    return next(readings_of(one.passage, tokens, _short(one.question), without=one.without))


def _short(question: str) -> str:
    return " ".join(question.split()[:ASKED])
