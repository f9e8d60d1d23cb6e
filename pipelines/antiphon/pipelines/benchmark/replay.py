"""Replay: count the steps that decoding a recorded answer would have taken with a drafter, without a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from antiphon.accel.decoding.stats import Step, Summary, summarize
from antiphon.accel.drafting.draft import EMPTY, Accepted, Draft, Drafter, DrafterFactory, trim
from antiphon.accel.drafting.verify import verify
from antiphon.pipelines.benchmark.samples import RecordedSample


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that a replay needs."""

    @property
    def eos_token_id(self) -> int | None:
        """End-of-sequence token id."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text.

        Args:
            text: The text.
            add_special_tokens: Whether to add tokens such as BOS.
        """


@dataclass(frozen=True, slots=True)
class Recording:
    """A sample in token ids: prompt, references, and the answer with its end-of-sequence token."""

    prompt: tuple[int, ...]
    references: tuple[tuple[int, ...], ...]
    answer: tuple[int, ...]


def tokenize_sample(sample: RecordedSample, tokenizer: Tokenizer) -> Recording:
    """Tokenize a sample. Only the prompt gets the special tokens that the tokenizer adds, such as BOS.

    Args:
        sample: The recorded sample.
        tokenizer: The model's tokenizer.

    Raises:
        ValueError: the tokenizer has no end-of-sequence token.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError("The tokenizer has no end-of-sequence token; a replay ends each answer with one.")
    return Recording(
        prompt=tuple(tokenizer.encode(sample.prompt)),
        references=tuple(tuple(tokenizer.encode(text, add_special_tokens=False)) for text in sample.references),
        answer=(*tokenizer.encode(sample.response, add_special_tokens=False), tokenizer.eos_token_id),
    )


def replay_samples(
    samples: Iterable[RecordedSample], tokenizer: Tokenizer, factory: DrafterFactory, num_draft_tokens: int
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
