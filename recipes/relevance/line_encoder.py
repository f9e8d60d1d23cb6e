"""Trains a LoRA adapter for a sentence encoder that encodes passages alone and scores which line answers.

The loss has three terms: the right line among all lines of the batch, the right line among those of its own passage
(van den Oord et al. 2018, InfoNCE), and whether the passage answers at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch.nn.functional import binary_cross_entropy_with_logits, normalize

from antiphon.accel.files import write_file
from antiphon.accel.models.bundled import quiet_peft
from antiphon.pipelines.relevance import HEAD, EncoderInput, Head, encoder_inputs
from antiphon.retrieval import MiniLMEmbedder, Passage
from antiphon.retrieval.embedders.minilm import load_minilm
from recipes.reader.train import LoraPlan, save_adapter
from recipes.relevance.examples import LineExample
from recipes.training_loop import StepReport, train_batches

LAYERS = ("query", "key", "value", "dense")

_START = (10.0, 10.0, -8.0)  # weights of the two comparisons, and the bias
QUICK = 60.0  # the scale's learning rate relative to the adapter's
_ADAPTER, _CONFIG = "adapter_model.safetensors", "adapter_config.json"
_OF_B = ".lora_B.weight"
_HARDEST = 2  # number of other passages, those with the highest scores, that count in the loss
_OTHER, _WHETHER = 0.5, 0.5  # loss weights of the other passages, and of whether a passage answers


def line_encoder_plan(steps: int, learning_rate: float, seed: int) -> LoraPlan:
    """Return a plan with the questions of twenty passages per update.

    Args:
        steps: Number of updates.
        learning_rate: Peak learning rate.
        seed: Random seed.
    """
    return LoraPlan(
        steps=steps, batch_size=20, learning_rate=learning_rate, warm_up=20, decay=0.6, seed=seed, save_every=100
    )


class LineEncoder(torch.nn.Module):
    """The encoder with a trainable adapter and the scale of the two comparisons.

    Args:
        tokens: Tokenizes texts.
        plan: Training plan.
        in_half: Whether to compute in bfloat16.
        start: Adapter to start from; default a new one.
    """

    def __init__(self, tokens: MiniLMEmbedder, plan: LoraPlan, *, in_half: bool, start: Path | None = None) -> None:
        from accelerate.utils import set_seed  # type: ignore[import-untyped]
        from peft import LoraConfig, get_peft_model

        super().__init__()
        set_seed(plan.seed)
        self.tokens, self.in_half = tokens, in_half
        config = LoraConfig(r=plan.rank, lora_alpha=plan.alpha, target_modules=list(LAYERS), bias="none")
        with quiet_peft():
            self.encoder: Any = get_peft_model(load_minilm(), config)
        self.encoder.peft_config["default"].base_model_name_or_path = tokens.name
        scale = Head.load(start).scale.tolist() if start else _START
        self.weights = torch.nn.Parameter(torch.tensor(scale) / QUICK)
        if start:
            with torch.no_grad():
                _copy_adapter(self.encoder, start, plan)

    def head_tensors(self) -> dict[str, torch.Tensor]:
        """Return the fields of `Head`; its vectors are 0, because only the comparisons are trained here."""
        scale = (QUICK * self.weights.detach()).cpu()
        return {"scale": scale, "line": torch.zeros(self.tokens.dim), "word": torch.zeros(self.tokens.dim)}

    def train(self, mode: bool = True) -> LineEncoder:
        """Stay in evaluation mode: without dropout, training matches inference and interrupted runs can resume."""
        return super().train(False)

    def forward(self, questions: Sequence[str], readings: Sequence[EncoderInput]) -> torch.Tensor:
        """Return the scores of the lines of all texts in order, of shape (questions, lines), as the pipeline does."""
        asked = self._read(questions)
        lines = [
            read[start:end]
            for reading, read in zip(readings, self._read([reading.text for reading in readings]), strict=True)
            for _, start, end in reading.spans
        ]
        whole = means_of(asked) @ means_of(lines).T
        near = torch.cat(asked) @ torch.cat(lines).T
        of_line = torch.tensor([place for place, line in enumerate(lines) for _ in line], device=near.device)
        best = _highest(near, of_line, len(lines))
        words = torch.stack([mean_of(part) for part in torch.split(best, [len(one) for one in asked])])
        weights = QUICK * self.weights
        return weights[0] * whole + weights[1] * words + weights[2]

    def _read(self, texts: Sequence[str]) -> list[torch.Tensor]:
        """Return the normalized token vectors of each text."""
        ids = [torch.tensor(one) for one in self.tokens.input_ids(texts)]
        padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True).to(self.weights.device)
        mask = torch.zeros_like(padded)
        for row, one in zip(mask, ids, strict=True):
            row[: len(one)] = 1
        with torch.autocast(padded.device.type, torch.bfloat16, enabled=self.in_half):
            states = self.encoder(input_ids=padded, attention_mask=mask).last_hidden_state
        return [normalize(row[1 : len(one) - 1].float(), dim=-1) for row, one in zip(states, ids, strict=True)]


def _copy_adapter(model: Any, start: Path, plan: LoraPlan) -> None:
    """Copy an adapter of the same or a smaller rank into a new one, so that their products are equal.

    Raises:
        ValueError: the adapter does not fit.
    """
    config = json.loads((start / _CONFIG).read_text(encoding="utf-8"))
    weights, begun = model.state_dict(), load((start / _ADAPTER).read_bytes())
    names = {name: name.replace(".weight", ".default.weight") for name in begun}
    if config["r"] > plan.rank or config["lora_alpha"] * plan.rank != plan.alpha * config["r"]:
        raise ValueError(
            f"{start} has rank {config['r']} and alpha {config['lora_alpha']}; to begin with, its rank must be "
            f"{plan.rank} or less, and its alpha {plan.alpha / plan.rank:g} times its rank."
        )
    if unknown := [name for name, own in names.items() if own not in weights]:
        raise ValueError(f"{start} changes other layers than the encoder's: {unknown[0]}.")
    for name, weight in begun.items():
        part = weights[names[name]]
        if name.endswith(_OF_B):
            part.zero_()
            part[:, : weight.shape[1]] = weight.float()
        else:
            part[: weight.shape[0]] = weight.float()


BatchSource = Callable[[int], Sequence[LineExample]]
"""Returns the batch with a given number; equal numbers give equal batches."""


def train_line_encoder(
    model: LineEncoder,
    batch: BatchSource,
    out: Path,
    plan: LoraPlan,
    *,
    report: StepReport = lambda step, loss: None,
) -> Path:
    """Train the adapter and the scale, and save both; an interrupted run resumes.

    Args:
        model: The encoder.
        batch: Returns the batch with a given number.
        out: Folder to write to.
        plan: Training plan.
        report: Called with step and loss.

    Raises:
        ValueError: ``out`` holds a checkpoint of another plan.
    """

    def loss(module: Any, number: int) -> torch.Tensor:
        return line_encoder_loss(module, model.tokens, batch(number))

    return train_batches(model, plan, loss, out, save=save_line_encoder, report=report)


def save_line_encoder(model: LineEncoder, out: Path) -> None:
    """Save the adapter in peft's format and bfloat16, and the head.

    Args:
        model: The encoder.
        out: Folder to write to.
    """
    save_adapter(model.encoder, out)
    write_file(out / HEAD, save(model.head_tensors()), mode=None)


def line_encoder_loss(model: Any, tokens: MiniLMEmbedder, batch: Sequence[LineExample]) -> torch.Tensor:
    """Return the loss of a batch in nats; questions answered beyond the encoder's maximum length are left out.

    Args:
        model: The encoder.
        tokens: Tokenizes texts.
        batch: Questions about passages.
    """
    passages = list(dict.fromkeys(one.passage for one in batch))
    readings = [next(encoder_inputs(passage, tokens)) for passage in passages]
    places = _places(passages, readings)
    batch = [one for one in batch if not one.lines or any((one.passage, line) in places for line in one.lines)]
    scores = model([one.question for one in batch], readings)
    device = scores.device
    own = torch.tensor([passages.index(one.passage) for one in batch], device=device)
    of_passage = torch.tensor([place for place, reading in enumerate(readings) for _ in reading.spans], device=device)
    right = torch.zeros_like(scores, dtype=torch.bool)
    for row, one in enumerate(batch):
        right[row, [places[one.passage, line] for line in one.lines if (one.passage, line) in places]] = True
    answered = right.any(dim=1)
    among_all = _negative_log_likelihood(scores[answered], right[answered])
    inside = scores.masked_fill(of_passage != own[:, None], -torch.inf)
    among_own = _negative_log_likelihood(inside[answered], right[answered])
    whether = _highest(scores, of_passage, len(passages))
    return among_all + among_own + _WHETHER * _whether(whether, own, answered)


def _whether(scores: torch.Tensor, own: torch.Tensor, answered: torch.Tensor) -> torch.Tensor:
    """Return the loss of classifying whether a passage answers: the question's own one, and the hardest other ones."""
    rows = torch.arange(len(scores), device=scores.device)
    wanted = torch.zeros_like(scores)
    wanted[rows[answered], own[answered]] = 1
    losses = binary_cross_entropy_with_logits(scores, wanted, reduction="none")
    others = losses.masked_fill(torch.nn.functional.one_hot(own, scores.shape[1]).bool(), 0.0)
    return losses[rows, own].mean() + _OTHER * others.topk(min(_HARDEST, scores.shape[1]), dim=1).values.mean()


def _negative_log_likelihood(scores: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the negative log-likelihood of the right lines by the softmax of each row; 0 without rows."""
    if not len(scores):
        return scores.sum()
    found = scores.masked_fill(~right, -torch.inf)
    return (scores.logsumexp(dim=1) - found.logsumexp(dim=1)).mean()


def _highest(scores: torch.Tensor, groups: torch.Tensor, count: int) -> torch.Tensor:
    """Return the maximum of each group of columns."""
    lowest = torch.full((len(scores), count), scores.min().item() - 1, device=scores.device)
    return lowest.scatter_reduce(1, groups.expand(len(scores), -1), scores, "amax")


def _places(passages: Sequence[Passage], readings: Sequence[EncoderInput]) -> dict[tuple[Passage, str], int]:
    """Map lines to columns."""
    lines = [
        (passage, line) for passage, reading in zip(passages, readings, strict=True) for line, _, _ in reading.spans
    ]
    return {line: place for place, line in reversed([*enumerate(lines)])}


def means_of(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the normalized mean of each part's rows."""
    return normalize(torch.stack([mean_of(part) for part in parts]), dim=-1)


def mean_of(part: torch.Tensor) -> torch.Tensor:
    """Return the mean of the rows; 0 without rows."""
    return part.sum(dim=0) / max(1, len(part))
