"""Replay: count the steps that decoding a recorded answer would have taken with a drafter, without a model.

python -m benchmarks.replay FILE --tokenizer TOKENIZER
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from antiphon.accel.decoding.stats import Step, Summary, summarize
from antiphon.accel.drafting.draft import EMPTY, Accepted, Draft, Drafter, DrafterFactory, trim
from antiphon.accel.drafting.drafters import DRAFTERS, make_drafter
from antiphon.accel.drafting.verify import verify
from antiphon.pipelines.benchmark.facts import command_line
from antiphon.pipelines.benchmark.samples import RecordedSample, load_samples
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import AsJson, Limit, Task
from antiphon.pipelines.rendering.tables import result_table
from benchmarks.program import program
from benchmarks.random_weights import load_tokenizer

REPLAY = {
    "drafter": "drafter",
    "tokens_per_step": "tokens per step",
    "rows_per_step": "rows per step",
    "steps": "steps",
    "tokens": "tokens",
    "draft_ms_per_step": "drafting, ms per step",
}


@dataclass(frozen=True, slots=True)
class Recording:
    """A sample in token ids: prompt, references, and the answer with its end-of-sequence token."""

    prompt: tuple[int, ...]
    references: tuple[tuple[int, ...], ...]
    answer: tuple[int, ...]


def tokenize_sample(sample: RecordedSample, tokenizer: Any) -> Recording:
    """Tokenize a sample. Only the prompt gets the special tokens that the tokenizer adds, such as BOS.

    Raises:
        ValueError: the tokenizer has no end-of-sequence token.
    """
    return Recording(
        prompt=tuple(tokenizer.encode(sample.prompt)),
        references=tuple(tuple(tokenizer.encode(text, add_special_tokens=False)) for text in sample.references),
        answer=answer_tokens(sample, tokenizer),
    )


def answer_tokens(sample: RecordedSample, tokenizer: Any) -> tuple[int, ...]:
    """Return the recorded answer in token ids, with the end-of-sequence token.

    Raises:
        ValueError: the tokenizer has no end-of-sequence token.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError("The tokenizer has no end-of-sequence token; a replay ends each answer with one.")
    return (*tokenizer.encode(sample.response, add_special_tokens=False), tokenizer.eos_token_id)


def replay_samples(
    samples: Iterable[RecordedSample], tokenizer: Any, factory: DrafterFactory, num_draft_tokens: int
) -> Summary:
    """Replay samples, each with a new drafter, and return the summed steps.

    Tokens per step are all tokens divided by all steps, including the step that ends each prefill: LLMA's Algorithm 2
    (Yang et al. 2023), for any drafter.

    Args:
        samples: Recorded samples.
        tokenizer: The model's tokenizer.
        factory: Makes a drafter.
        num_draft_tokens: Maximum number of draft tokens per step.

    Raises:
        ValueError: ``num_draft_tokens`` is negative.
    """
    recordings = (tokenize_sample(sample, tokenizer) for sample in samples)
    return summarize(
        [step for recording in recordings for step in replay_steps(recording, factory(), num_draft_tokens)]
    )


def replay_steps(recording: Recording, drafter: Drafter, num_draft_tokens: int) -> Iterator[Step]:
    """Yield the steps that decoding would have taken if the model had emitted exactly the recorded answer.

    The first step ends the prefill: it has no draft and emits one token. The last step is cut at the end of the answer.
    ``seconds`` is drafting alone; in the first step it includes indexing prompt and references. Drafters get no
    logits, so drafters that learn from logits learn nothing.

    Args:
        recording: The sample in token ids.
        drafter: A new drafter.
        num_draft_tokens: Maximum number of draft tokens per step.
    """
    if num_draft_tokens < 0:
        raise ValueError(f"num_draft_tokens is {num_draft_tokens}; give 0 or more.")
    context, end = list(recording.prompt), len(recording.prompt) + len(recording.answer)
    started = perf_counter()
    drafter.begin(recording.prompt, recording.references)
    draft = EMPTY
    while True:
        proposed = perf_counter()
        accepted = _follow(draft, recording, context)
        followed = perf_counter()
        drafter.observe(draft, accepted, None)
        seconds = (proposed - started) + (perf_counter() - followed)
        yield Step(
            tokens=accepted.tokens,
            drafted=len(draft),
            accepted=len(accepted.path),
            seconds=seconds,
            draft_seconds=seconds,
            finish="stop" if len(context) == end else None,
        )
        if len(context) == end:
            return
        started = perf_counter()
        draft = trim(drafter.propose(context, num_draft_tokens), num_draft_tokens, num_draft_tokens)


def _follow(draft: Draft, recording: Recording, context: list[int]) -> Accepted:
    """Verify the draft against the recorded answer; append the emitted tokens to ``context``."""

    def recorded(row: int) -> int:
        return recording.answer[len(context) - len(recording.prompt)]

    def commit(token: int) -> bool:
        context.append(token)
        return len(context) == len(recording.prompt) + len(recording.answer)

    return verify(draft, recorded, commit)


def replay(
    file: Annotated[
        Path, typer.Argument(help="Recorded answers: JSONL with id, task, query, references, prompt, response.")
    ],
    tokenizer: Annotated[str, typer.Option(help="The tokenizer's folder, or its name on the hub.")],
    drafter: Annotated[str | None, typer.Option(help=f"{', '.join(DRAFTERS)}; default: each of them.")] = None,
    num_draft_tokens: Annotated[int, typer.Option(help="Maximum number of draft tokens to verify per step.")] = 32,
    task: Task = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Count the decoding steps that recorded answers would have taken with a drafter, without running a model."""
    factories = {drafter: make_drafter(drafter)} if drafter else DRAFTERS
    samples = load_samples(file, task=task, limit=limit)
    loaded = load_tokenizer(tokenizer)
    figures = [
        {"drafter": name, "rows": num_draft_tokens, "samples": len(samples)}
        | replay_samples(samples, loaded, factory, num_draft_tokens).as_dict()
        for name, factory in factories.items()
    ]
    if as_json:
        facts = {
            "kind": "replay",
            "command": command_line("python -m benchmarks.replay"),
            "file": file.name,
            "task": task,
            "rows": num_draft_tokens,
        }
        typer.echo(json.dumps(facts | {"drafters": figures} | (figures[0] if drafter else {})))
        return
    console.out.print(result_table(f"{len(samples)} answers, at most {num_draft_tokens} draft tokens", REPLAY, figures))


app = program(replay)

if __name__ == "__main__":
    app()
