"""The terminal: answers as they stream, citations, costs and progress. Knows how things look and does none of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

if TYPE_CHECKING:
    from antiphon.pipelines.answer import Answer, AnswerStream
    from antiphon.pipelines.citations import Citation

out = Console(highlight=False, soft_wrap=True)
"""Answers and results: standard output."""

err = Console(stderr=True, highlight=False, soft_wrap=True)
"""Progress, notes and errors: standard error."""

Report = Callable[[str, int, int], None]


def quiet_libraries() -> None:
    """Keep the loading bars and advice of transformers out of the terminal, through its own switches."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


@contextmanager
def progress_bars(names: dict[str, str] | None = None) -> Iterator[Report]:
    """One bar for each stage that has something to do, on standard error; ``names`` says what stages are called."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    tasks: dict[str, TaskID] = {}
    own = Console(file=sys.stderr)  # the stream as it is now: what a library prints meanwhile may be sent elsewhere
    with Progress(*columns, console=own) as bars:

        def report(stage: str, done: int, total: int) -> None:
            if not total:
                return
            if stage not in tasks:
                tasks[stage] = bars.add_task((names or {}).get(stage, stage), total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield report


def show_stream(stream: AnswerStream) -> Answer:
    """Print an answer while it grows; give it back when it is whole."""
    with stream:
        for piece in stream:
            out.print(Text(piece), end="")
            out.file.flush()
    out.print()
    return stream.answer


def show_citations(answer: Answer, *, root: Path | None = None) -> None:
    """One line for each citation: passage number, source, characters, words. Sources under ``root`` are shortened."""
    if not answer.citations:
        out.print("No six words of the answer stand verbatim in a passage.", style="dim")
        return
    out.print("Stands verbatim in", style="dim")
    for citation in answer.citations:
        out.print(_citation_line(citation, root or Path.cwd()))


def _citation_line(citation: Citation, root: Path) -> Text:
    source = Path(citation.source)
    shown = source.relative_to(root) if source.is_relative_to(root) else source
    line = Text()
    line.append(f"  [{citation.passage}] ", style="bold cyan")
    line.append(f"{shown}, characters {citation.source_start}-{citation.source_end}", style="cyan")
    line.append(f": “{' '.join(citation.text.split())}”")
    return line


def show_cost(answer: Answer) -> None:
    """One line: what the answer cost."""
    steps = answer.steps
    out.print(
        f"{answer.usage.completion_tokens} tokens in {steps.steps} steps, {steps.tokens_per_step:.2f} tokens per step, "
        f"{steps.seconds:.1f} s after a prompt of {answer.usage.prompt_tokens} tokens" + _unfinished(answer),
        style="dim",
    )


def _unfinished(answer: Answer) -> str:
    return "; cut off by --max-new-tokens" if answer.finish_reason == "length" else ""
