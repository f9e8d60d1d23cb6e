"""Continues training a reader on examples of one passage, with scores on texts without training examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from antiphon.retrieval import Passage
from recipes.reader.checkpoint_selection import CheckpointSelector
from recipes.reader.corpus import is_held_out, page_name, read_corpus
from recipes.reader.encoding import encode_example
from recipes.reader.example import TrainingExample
from recipes.reader.single_passage import SinglePassageExamples
from recipes.reader.train import LoraPlan, answer_loss, example_numbers, trainable_adapter
from recipes.reader.written_questions import HELD_OUT_QUESTIONS, WRITTEN_QUESTIONS, load_written_questions
from recipes.training_loop import StepReport, train_weights

TURNS: Mapping[str, int] = {"encyclopedia": 6, "python": 5, "npm": 4, "manuals": 4, "everyday": 2}
"""Relative frequency of the corpus' folders among examples with written questions; others 1."""

KNOWN = 0.02
"""Examples with a smaller loss (nats per answer token) are skipped after their forward pass."""

_SHORT = 0.12  # share of examples whose passages are cut to a few sentences
_STRUCTURE = 5  # every fifth example is about a passage with code, a list or a table
_SEED = 7  # seed of the held-out examples
_OTHER = 45  # number of examples about other texts


def continued_plan(steps: int, learning_rate: float, seed: int, decay: float = 1e-4) -> LoraPlan:
    """Return a plan with a constant learning rate after warm-up; averaging snapshots replaces the decay.

    Args:
        steps: Maximum number of updates.
        learning_rate: Learning rate.
        seed: Random seed.
        decay: Share of the updates, at the end, over which the rate falls to zero.
    """
    return LoraPlan(
        steps=steps, batch_size=4, learning_rate=learning_rate, warm_up=20, decay=decay, seed=seed, save_every=25
    )


def continue_training(
    model: Any,
    tokenizer: Any,
    corpus: Sequence[Path],
    other: Sequence[Path],
    out: Path,
    plan: LoraPlan,
    *,
    start: Path,
    written: Sequence[Path] = (),
    patience: int = 300,
    is_stopped: Callable[[], bool] = lambda: False,
    report: StepReport = lambda step, loss: None,
    log: Callable[[str], None] = lambda line: None,
) -> Path:
    """Train the adapter ``start`` further; keep the best average of snapshots in ``out/best``.

    An interrupted or stopped run resumes from its last checkpoint in ``out``.

    Args:
        model: The base model.
        tokenizer: Its tokenizer.
        corpus: Documents; held-out pages are used for scoring.
        other: Documents without training examples, for scoring.
        out: Folder to write to.
        plan: Training plan.
        start: Adapter to start from.
        written: Files of written questions about ``corpus``, in addition to the bundled ones.
        patience: Stop after this many updates without a better score.
        is_stopped: Called after each update; returns whether to stop.
        report: Called with step and loss.
        log: Prints a line for each score.

    Raises:
        ValueError: ``out`` holds a checkpoint of another plan, or the adapter does not fit the model.
    """
    from accelerate.utils import set_seed  # type: ignore[import-untyped]

    out.mkdir(parents=True, exist_ok=True)
    passages = read_corpus(corpus)
    examples = _training_examples(passages, written, plan)
    guard = [p for p in passages if is_held_out(p) and not page_name(p).startswith("manuals/")]
    set_seed(plan.seed)
    adapted = trainable_adapter(model, start)
    watch = CheckpointSelector(
        tokenizer, _held_out(guard, other), out, every=plan.save_every, patience=patience, report=log
    )
    watch.begin(adapted)

    def parts(module: Any, step: int, process: int, processes: int) -> Iterator[torch.Tensor]:
        for number in example_numbers(step, plan, process, processes):
            example = examples.example(number, is_written=number % _STRUCTURE != 0)
            loss = answer_loss(module, encode_example(example, tokenizer), model.device)
            if loss.item() > KNOWN:
                yield loss / (plan.batch_size * processes)

    def told(step: int, loss: float) -> None:
        watch.update(step, loss)
        report(step, loss)

    return train_weights(
        adapted,
        plan,
        parts,
        out,
        save=watch.save,
        report=told,
        is_stopped=lambda: is_stopped() or watch.is_over(),
    )


def _training_examples(passages: Sequence[Passage], written: Sequence[Path], plan: LoraPlan) -> SinglePassageExamples:
    """Return the examples of the pages that are not held out, with folders weighted by `TURNS`."""
    asked = [one for file in (WRITTEN_QUESTIONS, *written) for one in load_written_questions(file)]
    examples = SinglePassageExamples(
        [passage for passage in passages if not is_held_out(passage)], asked, seed=plan.seed, short=_SHORT
    )
    examples.folders = _by_turns(examples)
    return examples


def _by_turns(examples: SinglePassageExamples) -> list[list[int]]:
    names = [page_name(examples.passages[folder[0]]).partition("/")[0] for folder in examples.folders]
    return [folder for name, folder in zip(names, examples.folders, strict=True) for _ in range(TURNS.get(name, 1))]


def _held_out(guard: Sequence[Any], other: Sequence[Path]) -> dict[str, list[TrainingExample]]:
    """Return examples about every second held-out passage with written questions, and generated ones about others."""
    asked = SinglePassageExamples(guard, load_written_questions(HELD_OUT_QUESTIONS), seed=_SEED)
    known = [example for index in asked.anchors[::2] if (example := asked.about(index)).questions]
    foreign = SinglePassageExamples(read_corpus(other), seed=_SEED)
    return {"guard": known, "other": [foreign.example(number) for number in range(_OTHER)]}
