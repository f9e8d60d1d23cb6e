"""Scores averages of training snapshots on texts without training examples, and keeps the best.

At a constant learning rate single weights fluctuate, and the average of the latest snapshots does not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from antiphon.accel.models.bundled import WEIGHTS
from recipes.reader.example import TrainingExample
from recipes.reader.score import Score, score
from recipes.reader.train import save_adapter

AVERAGED = 4
"""Number of snapshots that are averaged."""


class CheckpointSelector:
    """Takes a snapshot every ``every`` updates, scores every second one, and keeps the best average in ``out/best``.

    The score is the mean of the balanced scores of all sets of held-out examples. ``out/log.jsonl`` has one line each.

    Args:
        tokenizer: The model's tokenizer.
        held_out: Held-out examples by name.
        out: Folder to write to.
        every: Updates between snapshots.
        patience: Updates without a better score after which `is_over` is true.
        report: Prints a line for each score.
    """

    def __init__(
        self,
        tokenizer: Any,
        held_out: Mapping[str, Sequence[TrainingExample]],
        out: Path,
        *,
        every: int = 25,
        patience: int = 300,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._tokenizer, self._held_out = tokenizer, held_out
        self._out, self._every, self._patience, self._report = out, every, patience, report
        self.step = 0

    def begin(self, adapted: Any) -> None:
        """Score the initial weights, unless an earlier part of the run did."""
        if not self._log():
            self._judge(adapted, 0)

    def update(self, step: int, loss: float) -> None:
        """Record an update.

        Args:
            step: Number of the update, from 1.
            loss: Its loss.
        """
        self.step = step
        with (self._out / "losses.txt").open("a") as file:
            file.write(f"{step} {loss:.4f}\n")

    def save(self, adapted: Any, out: Path) -> None:
        """Save the adapter, and a snapshot if one is due; score every second snapshot.

        Args:
            adapted: The model with the adapter.
            out: Folder of the adapter.
        """
        save_adapter(adapted, out)
        if self.step and self.step % self._every == 0:
            folder = self._snapshot(self.step)
            save_adapter(adapted, folder)
            if self.step % (2 * self._every) == 0:
                self._judge(adapted, self.step)

    def is_over(self) -> bool:
        """Return whether the best score is at least ``patience`` updates old."""
        log = self._log()
        best = max(log, key=lambda line: float(line["score"]), default=None)
        return best is not None and self.step - int(best["step"]) >= self._patience

    def _judge(self, adapted: Any, step: int) -> None:
        steps = [at for at in range(step, 0, -self._every) if (self._snapshot(at) / WEIGHTS).is_file()][:AVERAGED]
        with _replaced_weights(adapted, averaged([self._snapshot(at) for at in steps])):
            scores = {name: score(adapted, self._tokenizer, examples) for name, examples in self._held_out.items()}
            mean = sum(one.balanced for one in scores.values()) / len(scores)
            is_best = mean > max((float(line["score"]) for line in self._log()), default=-1.0)
            if is_best:
                save_adapter(adapted, self._out / "best")
        self._write(step, mean, scores)

    def _write(self, step: int, mean: float, scores: Mapping[str, Score]) -> None:
        line = {"step": step, "score": round(mean, 4)} | {name: asdict(one) for name, one in scores.items()}
        with (self._out / "log.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        self._report(json.dumps(line))

    def _log(self) -> list[dict[str, Any]]:
        path = self._out / "log.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def _snapshot(self, step: int) -> Path:
        return self._out / "snapshots" / f"{step:05d}"


def averaged(folders: Sequence[Path]) -> dict[str, torch.Tensor]:
    """Return the mean of the adapters in these folders in float32; empty for no folders."""
    from safetensors.torch import load_file

    states = [load_file(folder / WEIGHTS) for folder in folders]
    names = states[0] if states else {}
    return {name: torch.stack([state[name].float() for state in states]).mean(0) for name in names}


@contextmanager
def _replaced_weights(adapted: Any, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Use other adapter weights, if there are any, until the ``with`` block exits."""
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    state = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    own = {name: weight.detach().clone() for name, weight in state.items()}
    if weights:
        set_peft_model_state_dict(adapted, dict(weights))
    try:
        yield
    finally:
        set_peft_model_state_dict(adapted, own)
