"""Draft heads: tokens per step of references alone, a head alone, and both in one tree, on recorded answers.

The head is a recorded one: it guesses the recorded token with given probabilities by depth.

python -m benchmarks.heads FILE --tokenizer TOKENIZER
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Annotated

import typer

from antiphon.accel.drafting.draft import Drafter, Tokens
from antiphon.accel.drafting.drafters import Blend
from antiphon.accel.drafting.drafters.head import MAX_DEPTH, DraftHead, Guesses, Head, HeadStats, HiddenStates
from antiphon.pipelines.benchmark.facts import command_line
from antiphon.pipelines.benchmark.samples import SHIPPED, load_samples
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import AsJson, Limit, Task
from antiphon.pipelines.rendering.tables import result_table
from benchmarks.program import program
from benchmarks.random_weights import load_tokenizer
from benchmarks.replay import Recording, replay_steps, tokenize_sample

ACCEPTANCE = (0.72, 0.70, 0.68, 0.66)
"""Probability of a right guess by depth, if all guesses before it are right: that of usual EAGLE and MTP heads."""

COLUMNS = {"rows": "draft rows", "references": "references", "head": "head", "both": "both", "gain": "× the better one"}


@dataclass(slots=True)
class RecordedHead(DraftHead):
    """A `DraftHead` that guesses the recorded token with given probabilities by depth, and else a random one.

    A guess depends on its position and depth alone, so that all methods get the same guesses.

    Attributes:
        text: Prompt and recorded answer of the current request.
        acceptance: Probability of a right guess by depth; the last one also holds for deeper guesses.
        claimed: Probability by depth that the head gives its guesses.
        layers: Indices of the hidden states that a head of this shape reads.
        passes: Number of passes so far.
        run: Called for each pass with its number of tokens, to spend the time of a real head's pass.
    """

    text: Tokens = ()
    acceptance: Sequence[float] = ACCEPTANCE
    claimed: Sequence[float] = ACCEPTANCE
    layers: tuple[int, ...] = (-1,)
    stats: HeadStats = field(default_factory=HeadStats)
    run: Callable[[int], object] = lambda tokens: None
    name: str = "recorded"
    passes: int = 0

    def session(self, cache: object) -> RecordedSession:
        """Return the session of a new text."""
        return RecordedSession(self)


class RecordedSession:
    """The session of a `RecordedHead`."""

    def __init__(self, head: RecordedHead) -> None:
        self.head = head
        self.depth = self.place = 0
        self.is_right = True

    def read(self, states: Sequence[HiddenStates], tokens: Tokens, width: int) -> Guesses:
        """Guess the token after the last confirmed one."""
        self.place, self.depth, self.is_right = states[0].start + len(tokens), 0, True
        return self._guesses(len(tokens))

    def guess(self, token: int, width: int) -> Guesses:
        """Guess the token after a guessed one."""
        return self._guesses(1)

    def _guesses(self, tokens: int) -> Guesses:
        head = self.head
        head.run(tokens)
        head.passes += 1
        right, claimed = (rates[min(self.depth, len(rates) - 1)] for rates in (head.acceptance, head.claimed))
        random = Random(MAX_DEPTH * self.place + self.depth)
        self.depth, self.place = self.depth + 1, self.place + 1
        self.is_right = self.is_right and random.random() < right and self.place < len(head.text)
        return [(head.text[self.place] if self.is_right else random.randrange(1000), claimed)]


def draft_states(head: Head) -> Head:
    """Give a part the positions of all confirmed tokens, as an engine gives their hidden states."""
    known = 0

    def take() -> list[HiddenStates]:
        nonlocal known
        first, known = known, len(head.text) - 1
        return [HiddenStates(first, (range(first, known),))]

    head.connect(take, lambda function: function())
    return head


def drafters_of(recording: Recording, alone: RecordedHead, both: RecordedHead) -> dict[str, Drafter]:
    """Return the compared drafters of one answer."""
    alone.text = both.text = (*recording.prompt, *recording.answer)
    blend = Blend(head=both)
    assert blend.head is not None
    draft_states(blend.head)
    return {"references": Blend(), "head": draft_states(Head(alone)), "both": blend}


def tokens_per_step(recordings: Sequence[Recording], rows: int, acceptance: Sequence[float]) -> dict[str, float]:
    """Return all tokens divided by all steps, for each of the compared drafters.

    Args:
        rows: Maximum number of draft rows per step.
        acceptance: Acceptance rate of the head by depth.
    """
    tokens, steps = Counter[str](), Counter[str]()
    alone, both = (
        RecordedHead(acceptance=acceptance, claimed=acceptance, stats=HeadStats(is_timed=False)) for _ in range(2)
    )
    for recording in recordings:
        for name, drafter in drafters_of(recording, alone, both).items():
            taken = list(replay_steps(recording, drafter, rows))
            tokens[name] += sum(len(step.tokens) for step in taken)
            steps[name] += len(taken)
    rates = {name: tokens[name] / steps[name] for name in tokens}
    return rates | {"gain": rates["both"] / max(rates["references"], rates["head"])}


def heads(
    file: Annotated[str, typer.Argument(help=f"Recorded answers as JSONL, or {', '.join(SHIPPED)}.")],
    tokenizer: Annotated[str, typer.Option(help="The tokenizer's folder, or its name on the hub.")],
    rows: Annotated[list[int] | None, typer.Option(help="Maximum number of draft rows; may be repeated.")] = None,
    acceptance: Annotated[
        str, typer.Option(help="Acceptance rate of the head by depth, separated by commas.")
    ] = ",".join(map(str, ACCEPTANCE)),
    task: Task = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Count the tokens per step of references alone, a head alone, and both, on recorded answers, without a model."""
    samples, loaded = load_samples(file, task=task, limit=limit), load_tokenizer(tokenizer)
    recordings = [tokenize_sample(sample, loaded) for sample in samples]
    rates = [float(rate) for rate in acceptance.split(",")]
    figures = [{"rows": each} | tokens_per_step(recordings, each, rates) for each in rows or (4, 8, 16)]
    if as_json:
        facts = {"kind": "heads", "command": command_line("python -m benchmarks.heads"), "file": file, "task": task}
        typer.echo(json.dumps(facts | {"acceptance": rates, "samples": len(samples), "rates": figures}))
        return
    console.out.print(result_table(f"Tokens per step, {len(samples)} answers", COLUMNS, figures))


app = program(heads)

if __name__ == "__main__":
    app()
