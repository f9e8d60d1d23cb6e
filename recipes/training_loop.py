"""Training loop with checkpoints; an interrupted run resumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from antiphon.accel.files import write_file

if TYPE_CHECKING:
    from dataclasses import Field

_STATE = "training.pt"


class TrainingPlan(Protocol):
    """Plan of a training run: a dataclass. A run can be resumed only with an equal plan."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def steps(self) -> int:
        """Number of updates."""

    @property
    def learning_rate(self) -> float:
        """Peak learning rate."""

    @property
    def save_every(self) -> int:
        """Updates between checkpoints."""

    def rate(self, step: int) -> float:
        """Return the learning rate of update ``step`` (from 0) relative to the peak."""


StepReport = Callable[[int, float], None]
"""Called after each update with its number (from 1) and its loss."""

Parts = Callable[[Any, int, int, int], Iterator[torch.Tensor]]
"""``parts(module, step, process, processes)`` yields losses whose sum over all processes is the loss of an update."""


def train_weights(
    module: torch.nn.Module,
    plan: TrainingPlan,
    parts: Parts,
    out: Path,
    *,
    save: Callable[[Any, Path], None],
    report: StepReport = lambda step, loss: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Path:
    """Train the weights of a module that require gradients, with AdamW.

    An interrupted run resumes from its last checkpoint, which is in ``out`` until the end. If ``parts`` depends on the
    step alone, the run ends with the same weights as an uninterrupted one.

    Args:
        module: Module to train.
        plan: Training plan.
        parts: Yields the losses of an update.
        out: Folder of checkpoints and results.
        save: Saves the module in ``out``; called at every checkpoint.
        report: Called with step and loss.
        is_stopped: Called after each update; if it returns True, the run writes a checkpoint and ends.

    Raises:
        ValueError: ``out`` holds a checkpoint of another plan.
    """
    from accelerate import Accelerator  # type: ignore[import-untyped]

    accelerator = Accelerator()
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=plan.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, plan.rate)
    first = _restore(out, plan, module, optimizer, schedule)
    module, optimizer = accelerator.prepare(module, optimizer)
    module.train()
    processes = accelerator.num_processes
    for step in range(first, plan.steps):
        loss = 0.0
        for part in parts(module, step, accelerator.process_index, processes):
            accelerator.backward(part * processes)  # DDP averages gradients; this sums them
            loss += part.item()
        accelerator.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        report(step + 1, loss * processes)
        stopped = is_stopped()
        due = stopped or (step + 1) % plan.save_every == 0
        if accelerator.is_main_process and due and step + 1 < plan.steps:
            _checkpoint(out, plan, step + 1, accelerator.unwrap_model(module), optimizer, schedule)
            save(accelerator.unwrap_model(module), out)
        if stopped:
            return out
    if accelerator.is_main_process:
        save(accelerator.unwrap_model(module), out)
        (out / _STATE).unlink(missing_ok=True)
    return out


def train_batches(
    module: torch.nn.Module,
    plan: TrainingPlan,
    loss: Callable[[Any, int], torch.Tensor],
    out: Path,
    *,
    save: Callable[[Any, Path], None],
    report: StepReport = lambda step, loss: None,
) -> Path:
    """Train as `train_weights` with one batch per process and update.

    Args:
        module: Module to train.
        plan: Training plan.
        loss: ``loss(module, number)`` is the loss of a batch.
        out: Folder of checkpoints and results.
        save: Saves the module in ``out``; called at every checkpoint.
        report: Called with step and loss.

    Raises:
        ValueError: ``out`` holds a checkpoint of another plan.
    """
    out.mkdir(parents=True, exist_ok=True)

    def parts(module: Any, step: int, process: int, processes: int) -> Iterator[torch.Tensor]:
        yield loss(module, step * processes + process) / processes

    return train_weights(module, plan, parts, out, save=save, report=report)


def _trained_weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach() for name, weight in module.named_parameters() if weight.requires_grad}


def _checkpoint(
    out: Path, plan: TrainingPlan, step: int, module: torch.nn.Module, optimizer: Any, schedule: Any
) -> None:
    """Write everything that the next update needs, atomically."""
    state = {
        "weights": _trained_weights(module),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
        "step": step,
        "plan": asdict(plan),
    }
    write_file(out / _STATE, lambda file: torch.save(state, file), mode=None)


def _restore(out: Path, plan: TrainingPlan, module: torch.nn.Module, optimizer: Any, schedule: Any) -> int:
    """Load the checkpoint; return the next update, or 0 without a checkpoint."""
    if not (out / _STATE).is_file():
        return 0
    state = torch.load(out / _STATE, weights_only=True)
    if state["plan"] != asdict(plan):
        raise ValueError(f"{out} holds a checkpoint of another plan ({state['plan']}); give that, or another folder.")
    with torch.no_grad():
        for name, weight in _trained_weights(module).items():
            weight.copy_(state["weights"][name])
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    return int(state["step"])
