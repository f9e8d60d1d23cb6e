"""Terminal output of all commands: streamed answers, citations, costs, progress, times, and errors in the input."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from threading import Lock, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBars
from rich.text import Text
from typer.core import TyperGroup

from antiphon.accel.progress import Progress
from antiphon.pipelines.rendering.plain_quotes import without_markup
from antiphon.pipelines.rendering.sanitize import sanitize, sanitize_line
from antiphon.pipelines.rendering.segments import citation_location, displayed_quote
from antiphon.pipelines.rendering.terminal import citation_lines

if TYPE_CHECKING:
    from antiphon.accel import TextModel
    from antiphon.pipelines.answer import Answer, AnswerStream

out = Console(highlight=False, soft_wrap=True)
"""Standard output: answers and results."""

err = Console(stderr=True, highlight=False, soft_wrap=True)
"""Standard error: progress, notes and errors."""


THINKING_WIDTH = 100
"""Maximum number of characters of the model's thinking that are shown."""


def quiet_libraries() -> None:
    """Turn off the progress bars and warnings of transformers, and the retry notices of the hub's client."""
    import logging

    # The libraries read these variables on import, which takes seconds and is not always needed.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if "transformers" in sys.modules:
        from transformers.utils import logging as transformers_logging

        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
    for name in ("huggingface_hub", "httpx", "sentence_transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextmanager
def status(text: str) -> Iterator[None]:
    """Show the current stage of a command on standard error: a spinner on a terminal, else one line."""
    if not err.is_terminal:
        err.print(f"{sanitize_line(text)} …", style="dim", markup=False)
        yield
        return
    with err.status(Text(f"{sanitize_line(text)} …")):
        yield


@contextmanager
def progress_bars(names: dict[str, str] | None = None, *, waiting: str = "", every: float = 10.0) -> Iterator[Progress]:
    """Show a progress bar per stage on standard error (lines if it is not a terminal); yield the function for updates.

    Args:
        waiting: Text shown until the first stage; by default nothing.
        every: Interval in seconds of printed lines if standard error is not a terminal.
    """
    own = Console(file=sys.stderr)  # pinned, because callers may redirect sys.stderr while bars are shown
    if not own.is_terminal:
        if waiting:
            own.print(f"{sanitize_line(waiting)} …", style="dim", markup=False)
        with ProgressLines(own.print, every=every) as lines:
            yield lambda stage, done, total: lines.update((names or {}).get(stage, stage), done, total)
        return
    tasks: dict[str, TaskID] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ProgressBars(*columns, console=own) as bars:
        until_then = [bars.add_task(waiting, total=None)] if waiting else []

        def report(stage: str, done: int, total: int) -> None:
            if not total:
                return
            if until_then:
                bars.remove_task(until_then.pop())
            if stage not in tasks:
                tasks[stage] = bars.add_task((names or {}).get(stage, stage), total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield report
        if until_then:
            bars.remove_task(until_then.pop())


def show_suggestion() -> None:
    """Print one line on standard error with language models that could write the answer."""
    from antiphon.pipelines.models.suggestions import suggested_models

    err.print(suggested_models(), style="dim", markup=False)


def show_choice(language_model: TextModel) -> None:
    """Print on standard error which drafter "auto" selects for a local model, and why."""
    from antiphon.accel import LanguageModel, choose_drafter

    if not isinstance(language_model, LanguageModel):
        return
    with err.status("Measuring"):
        options = language_model.options
        choice = choose_drafter(language_model.model, reproducible=options.reproducible, engine=options.engine_choice)
    err.print(f"drafter {choice}", style="dim", markup=False)


def show_stream(stream: AnswerStream, stopwatch: Stopwatch) -> None:
    """Print an answer while it streams. The model's thinking is shown as one dim line on standard error.

    Quotes at the start of the text are printed without markup. If the stream has a ``quote``, the
    quote is printed before the text.

    Args:
        stopwatch: Records the time of the first output.
    """
    quotes = stream.plan.response_prefix
    reasoning, thinking, quote = "", err.status("Thinking"), _FirstQuote()
    if stream.plan.quote is not None:
        Thread(target=quote.show, args=(stream,), name="quote").start()
    try:
        with stream:
            for piece in iter(stream.next_piece, None):
                if piece.is_thinking:
                    thinking.start()
                    reasoning += piece.text
                    continue
                thinking.stop()
                quote.end()
                reasoning = _show_thinking(reasoning)
                text, quotes = (without_markup(piece.text) if quotes and piece.text == quotes else piece.text), ""
                out.print(Text(sanitize(text)), end="")
                out.file.flush()
                if text:
                    stopwatch.mark_first_output()
        thinking.stop()
        _show_thinking(reasoning)
    finally:  # an error message starts on a new line
        quote.end()
        thinking.stop()
        out.print()


class _FirstQuote:
    """Prints the best quote of the passages, unless the answer begins before the quote is found.

    `show` runs in its own thread.
    """

    def __init__(self) -> None:
        self._lock, self._has_ended = Lock(), False

    def show(self, stream: AnswerStream) -> None:
        """Search for the quote and print it with its location."""
        try:
            quote = stream.quote
        except RuntimeError:  # Python starts no more threads, because the command has printed the answer and ends
            if self._has_ended:
                return
            raise
        with self._lock:
            if quote is not None and not self._has_ended:
                out.print(Text(sanitize(f"Quoted from {citation_location(quote)}:"), style="dim"))
                out.print(Text(f"  “{sanitize(displayed_quote(quote.text))}”\n"))

    def end(self) -> None:
        """Prevent any later printing of the quote."""
        with self._lock:
            self._has_ended = True


def _show_thinking(reasoning: str) -> str:
    """Print the beginning of the thinking, if there is any, and return an empty text."""
    if reasoning:
        short = shorten(sanitize(reasoning), THINKING_WIDTH, placeholder=" …")
        err.print(Text(f"Thought: {short}"), style="dim")
    return ""


def show_citations(answer: Answer, *, root: Path | None = None) -> None:
    """Print one line per citation; for a refusal, one line per nearest sentence.

    Args:
        root: Folder that sources are shown relative to.
    """
    for line in citation_lines(answer.citations, answer.nearest, root):
        out.print(line)


def show_cost(answer: Answer, stopwatch: Stopwatch) -> None:
    """Print one line with the cost of the answer."""
    out.print(f"{answer.caption}; {stopwatch.describe()}", style="dim")


class ProgressLines:
    """Prints the current stage at regular intervals while it is open.

    It prints from a thread, so that lines also appear when a step takes longer than the interval.

    Args:
        every: Interval in seconds.
    """

    def __init__(self, write: Callable[[str], None], *, every: float) -> None:
        self._write = write
        self._every = every
        self._state: tuple[str, int, int] | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def update(self, stage: str, done: int, total: int) -> None:
        """Set the current stage, the number of items done, and the total number. Do nothing if the total is 0."""
        if total:
            self._state = stage, done, total

    def __enter__(self) -> ProgressLines:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._is_over.wait(self._every):
            if self._state is not None:
                stage, done, total = self._state
                self._write(f"{stage}: {done} of {total}, {time.monotonic() - began:.0f} s")


_MAX_STARTING_SECONDS = 60  # an older process runs more than this command


class Stopwatch:
    """Measures the seconds until the first output and until the end.

    Args:
        before: Seconds to add for the time before the stopwatch was created, such as
            `seconds_since_process_start`.
    """

    def __init__(self, before: float = 0.0) -> None:
        self._started = time.perf_counter() - before
        self._first: float | None = None

    def mark_first_output(self) -> None:
        """Record the time of the first output; later calls change nothing."""
        if self._first is None:
            self._first = time.perf_counter() - self._started

    def describe(self) -> str:
        """Return the times until now as text."""
        seconds = time.perf_counter() - self._started
        first = seconds if self._first is None else self._first
        return f"first output after {first:.1f} s, {seconds:.1f} s in all"


def seconds_since_process_start() -> float:
    """Return the seconds since this process started; 0 if they are unknown or the process is a server."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc(5): ticks from the start of the system
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
    return age if 0 <= age <= _MAX_STARTING_SECONDS else 0.0


INVALID_INPUT = 2
"""Exit code if an argument, an option or a file cannot be used."""

INPUT_ERRORS = (ValueError, TypeError, OSError, ImportError, MemoryError)


def exit_with_message(context: Any, error: Exception) -> None:
    """Print an error in the user's input and exit with code 2."""
    # A closed pipe is not an error of the input: `head` closes it once it has enough lines.
    if isinstance(error, BrokenPipeError) or context.params.get("traceback"):
        raise error
    err.print(sanitize(f"antiphon: {error}"), style="red", markup=False)
    context.exit(INVALID_INPUT)


class CommandGroup(TyperGroup):
    """A group of commands. With the option ``--traceback``, errors are raised with their traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except INPUT_ERRORS as error:
            return exit_with_message(ctx, error)
