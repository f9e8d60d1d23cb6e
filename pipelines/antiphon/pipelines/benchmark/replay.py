"""Replay: how many forwards a recorded answer would have taken with any drafter. No model is run."""

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
    """What a replay needs of a tokenizer; those of transformers have it."""

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends an answer."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A sample in token ids: the prompt, each reference by itself, and the answer with its end-of-sequence token."""

    prompt: tuple[int, ...]
    references: tuple[tuple[int, ...], ...]
    answer: tuple[int, ...]


def recording_of(sample: RecordedSample, tokenizer: Tokenizer) -> Recording:
    """Tokenise a sample. Only the prompt gets the special tokens that the tokenizer adds, such as BOS.

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
    """Replay the samples with a fresh drafter each, at most ``num_draft_tokens`` draft rows a step, and add everything up.

    Tokens per step are all tokens over all steps, the one that ends each prefill included: LLMA's Algorithm 2
    (Yang et al. 2023), for any drafter.

    Raises:
        ValueError: ``num_draft_tokens`` is negative.
    """
    recordings = (recording_of(sample, tokenizer) for sample in samples)
    return summarize(
        [step for recording in recordings for step in replay_steps(recording, factory(), num_draft_tokens)]
    )


def replay_steps(recording: Recording, drafter: Drafter, num_draft_tokens: int) -> Iterator[Step]:
    """The steps that decoding would have taken, had the model said exactly what was recorded.

    The first one ends the prefill: it has no draft and emits one token. A step that reaches the end of the answer is
    cut there. ``seconds`` holds drafting alone, and in the first step that includes reading the prompt and the
    references. There are no logits: a drafter that learns from them learns nothing here.
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
    """Walk down the draft as the recorded answer goes; ``context`` grows by what is emitted."""

    def recorded(row: int) -> int:
        return recording.answer[len(context) - len(recording.prompt)]

    def commit(token: int) -> bool:
        context.append(token)
        return len(context) == len(recording.prompt) + len(recording.answer)

    return verify(draft, recorded, commit)
