"""The training loop: updates, checkpoints, and resuming a run that was cut off. Knows nothing of what is trained."""

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
    """How long and how fast: a dataclass, all of which has to be the same for a run to go on."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def steps(self) -> int:
        """How many updates."""

    @property
    def learning_rate(self) -> float:
        """The highest rate."""

    @property
    def save_every(self) -> int:
        """After how many updates a checkpoint is written."""

    def rate(self, step: int) -> float:
        """The rate of update ``step``, from 0, as a share of the highest."""


StepReport = Callable[[int, float], None]
"""Called after each update with its number, from 1, and its loss."""

Parts = Callable[[Any, int, int, int], Iterator[torch.Tensor]]
"""``parts(module, step, process, processes)``: what adds up, over all processes, to the loss of an update."""


def train_weights(
    module: torch.nn.Module,
    course: TrainingPlan,
    parts: Parts,
    out: Path,
    *,
    save: Callable[[Any, Path], None],
    report: StepReport = lambda step, loss: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Path:
    """Train the weights of a module that want a gradient, by AdamW, and ``save`` it in ``out`` at every checkpoint.

    A run that was cut off goes on from its last checkpoint, which lies in ``out`` until the end; if ``parts`` depend
    on the step alone, it ends with the same weights as a run that was not. ``is_stopped`` is asked after each update;
    a run that it stops leaves a checkpoint of that update.

    Raises:
        ValueError: ``out`` holds a checkpoint of another course.
    """
    from accelerate import Accelerator  # type: ignore[import-untyped]

    accelerator = Accelerator()
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=course.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, course.rate)
    first = _restore(out, course, module, optimizer, schedule)
    module, optimizer = accelerator.prepare(module, optimizer)
    module.train()
    processes = accelerator.num_processes
    for step in range(first, course.steps):
        loss = 0.0
        for part in parts(module, step, accelerator.process_index, processes):
            accelerator.backward(part * processes)  # gradients of several processes are averaged
            loss += part.item()
        accelerator.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        report(step + 1, loss * processes)
        stopped = is_stopped()
        due = stopped or (step + 1) % course.save_every == 0
        if accelerator.is_main_process and due and step + 1 < course.steps:
            _checkpoint(out, course, step + 1, accelerator.unwrap_model(module), optimizer, schedule)
            save(accelerator.unwrap_model(module), out)
        if stopped:
            return out
    if accelerator.is_main_process:
        save(accelerator.unwrap_model(module), out)
        (out / _STATE).unlink(missing_ok=True)
    return out


def train_batches(
    module: torch.nn.Module,
    course: TrainingPlan,
    loss: Callable[[Any, int], torch.Tensor],
    out: Path,
    *,
    save: Callable[[Any, Path], None],
    report: StepReport = lambda step, loss: None,
) -> Path:
    """As `teach`, with one batch of each process in an update: ``loss(module, number)`` is that of a batch.

    Raises:
        ValueError: ``out`` holds a checkpoint of another course.
    """
    out.mkdir(parents=True, exist_ok=True)

    def parts(module: Any, step: int, process: int, processes: int) -> Iterator[torch.Tensor]:
        yield loss(module, step * processes + process) / processes

    return train_weights(module, course, parts, out, save=save, report=report)


def _taught(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach() for name, weight in module.named_parameters() if weight.requires_grad}


def _checkpoint(
    out: Path, course: TrainingPlan, step: int, module: torch.nn.Module, optimizer: Any, schedule: Any
) -> None:
    """What the next update needs, whole or not at all."""
    state = {
        "weights": _taught(module),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
        "step": step,
        "course": asdict(course),
    }
    write_file(out / _STATE, lambda file: torch.save(state, file), mode=None)


def _restore(out: Path, course: TrainingPlan, module: torch.nn.Module, optimizer: Any, schedule: Any) -> int:
    """The update to go on with: 0 where there is no checkpoint."""
    if not (out / _STATE).is_file():
        return 0
    state = torch.load(out / _STATE, weights_only=True)
    if state["course"] != asdict(course):
        raise ValueError(f"{out} holds a checkpoint of another plan ({state['course']}); give that, or another folder.")
    with torch.no_grad():
        for name, weight in _taught(module).items():
            weight.copy_(state["weights"][name])
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    return int(state["step"])
