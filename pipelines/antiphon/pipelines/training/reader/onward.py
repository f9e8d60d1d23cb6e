"""Training on: a reader that is there, taught by lessons of one passage and watched on texts of no lesson."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from antiphon.pipelines.models.adapter import further
from antiphon.pipelines.training.loop import StepReport, teach
from antiphon.pipelines.training.reader.corpus import is_held_out, page_name, read_corpus
from antiphon.pipelines.training.reader.encoding import encode_lesson
from antiphon.pipelines.training.reader.lesson import Lesson
from antiphon.pipelines.training.reader.single import SinglePassageLessons
from antiphon.pipelines.training.reader.train import ReaderPlan, answer_loss, lesson_numbers
from antiphon.pipelines.training.reader.watch import Watch
from antiphon.pipelines.training.reader.written import FILE, read_written

HELD_OUT = FILE.parent / "held_out.jsonl"
"""Questions that people wrote about pages of no lesson."""

TURNS: Mapping[str, int] = {"encyclopedia": 6, "python": 5, "npm": 4, "manuals": 4, "everyday": 2}
"""How often each folder of the corpus has its turn among the lessons that people asked about; others once."""

KNOWN = 0.02
"""The loss, in nats per answer token, under which a lesson teaches nothing; it costs its forward alone."""

_SHORT = 0.12  # of the lessons, with passages cut to a few sentences
_STRUCTURE = 5  # every fifth lesson is about a passage with code, a list or a table
_SEED = 7  # of the lessons that are held out
_OTHER = 45  # lessons about other texts


def plan_onward(steps: int, learning_rate: float, seed: int, decay: float = 1e-4) -> ReaderPlan:
    """A constant rate after the warm-up: the watch averages snapshots instead, and ends the course when it has to.

    With a ``decay`` the rate falls to zero over so much of the steps at the end.
    """
    return ReaderPlan(
        steps=steps, lessons=4, learning_rate=learning_rate, warm_up=20, decay=decay, seed=seed, save_every=25
    )


def train_onward(
    model: Any,
    tokenizer: Any,
    corpus: Sequence[Path],
    other: Sequence[Path],
    out: Path,
    plan: ReaderPlan,
    *,
    start: Path,
    written: Sequence[Path] = (),
    patience: int = 300,
    is_stopped: Callable[[], bool] = lambda: False,
    report: StepReport = lambda step, loss: None,
    log: Callable[[str], None] = lambda line: None,
) -> Path:
    """Train the adapter ``start`` on, and keep the best average of snapshots in ``out/best``.

    ``written`` are files of questions that people wrote about the ``corpus``, beside those that ship with the package.
    The score is on held-out pages of the ``corpus`` and on ``other`` documents, of which no lesson is made. A run that
    was stopped, by ``is_stopped`` or from outside, goes on from its last checkpoint in ``out``.

    Raises:
        ValueError: ``out`` holds a checkpoint of another plan, or the adapter is none for this model.
    """
    from accelerate.utils import set_seed  # type: ignore[import-untyped]

    out.mkdir(parents=True, exist_ok=True)
    passages = read_corpus(corpus)
    asked = [one for file in (FILE, *written) for one in read_written(file)]
    lessons = SinglePassageLessons(
        [passage for passage in passages if not is_held_out(passage)], asked, seed=plan.seed, short=_SHORT
    )
    lessons.folders = _by_turns(lessons)
    guard = [p for p in passages if is_held_out(p) and not page_name(p).startswith("manuals/")]
    set_seed(plan.seed)
    adapted = further(model, start)
    watch = Watch(tokenizer, _held_out(guard, other), out, every=plan.save_every, patience=patience, report=log)
    watch.begin(adapted)

    def parts(module: Any, step: int, process: int, processes: int) -> Iterator[torch.Tensor]:
        for number in lesson_numbers(step, plan, process, processes):
            lesson = lessons.lesson(number, is_written=number % _STRUCTURE != 0)
            loss = answer_loss(module, encode_lesson(lesson, tokenizer), model.device)
            if loss.item() > KNOWN:
                yield loss / (plan.lessons * processes)

    def told(step: int, loss: float) -> None:
        watch.update(step, loss)
        report(step, loss)

    return teach(
        adapted,
        plan,
        parts,
        out,
        save=watch.save,
        report=told,
        is_stopped=lambda: is_stopped() or watch.is_over(),
    )


def _by_turns(lessons: SinglePassageLessons) -> list[list[int]]:
    names = [page_name(lessons.passages[folder[0]]).partition("/")[0] for folder in lessons.folders]
    return [folder for name, folder in zip(names, lessons.folders, strict=True) for _ in range(TURNS.get(name, 1))]


def _held_out(guard: Sequence[Any], other: Sequence[Path]) -> dict[str, list[Lesson]]:
    """Every second passage of the held-out pages that people asked about, and lessons by rule about other texts."""
    asked = SinglePassageLessons(guard, read_written(HELD_OUT), seed=_SEED)
    known = [lesson for index in asked.anchors[::2] if (lesson := asked.about(index)).questions]
    foreign = SinglePassageLessons(read_corpus(other), seed=_SEED)
    return {"guard": known, "other": [foreign.lesson(number) for number in range(_OTHER)]}
