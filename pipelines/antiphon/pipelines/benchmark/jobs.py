"""Recorded samples to jobs for methods: the recorded prompt, or the question asked anew. Decodes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from antiphon.pipelines.benchmark.cases import case_of
from antiphon.pipelines.benchmark.replay import recording_of
from antiphon.pipelines.benchmark.run import Job

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel
    from antiphon.pipelines.benchmark.samples import RecordedSample


def jobs_of(
    language_model: LanguageModel,
    samples: Sequence[RecordedSample],
    *,
    limit: int,
    passages: int | None = None,
    shuffled: bool = False,
    replayed: bool = False,
) -> list[Job]:
    """What to decode for each sample, with ``limit`` new tokens at most.

    Without ``passages`` the prompt is the recorded one. With them the query is asked over the first so many
    references, in the form that the model is made for; over none of them it is asked alone. ``shuffled`` gives every
    sample the references of another one, so that there is next to nothing to copy; the prompt is then always made
    anew. The answer is only kept where it is to be ``replayed``.

    Raises:
        ValueError: ``passages`` is negative, ``limit`` below 1, a prompt leaves no room for the answer in the context
            window, or there is but one sample to shuffle.
    """
    if limit < 1:
        raise ValueError(f"max_new_tokens is {limit}; at least 1 is needed.")
    if passages is not None and passages < 0:
        raise ValueError(f"passages is {passages}; give 0 to ask without references, or more.")
    if shuffled:
        samples = _shuffled(samples)
        passages = max(len(sample.references) for sample in samples) if passages is None else passages
    jobs = [_job(language_model, sample, passages) for sample in samples]
    if replayed:
        answers = [recording_of(sample, _tokenizer(language_model)).answer[:limit] for sample in samples]
        jobs = [replace(job, answer=answer) for job, answer in zip(jobs, answers, strict=True)]
    _check_room(language_model, jobs, limit)
    return jobs


def _shuffled(samples: Sequence[RecordedSample]) -> list[RecordedSample]:
    """Every sample with the references of the one half the list away: another question, and another topic."""
    if len(samples) < 2:
        raise ValueError("There is but 1 sample; its references cannot be exchanged for another's. Give more.")
    half = len(samples) // 2
    others = [*samples[half:], *samples[:half]]
    return [replace(one, references=other.references) for one, other in zip(samples, others, strict=True)]


def _job(language_model: LanguageModel, sample: RecordedSample, passages: int | None) -> Job:
    from antiphon.accel.text.messages import encode_prompt

    case = case_of(language_model, sample, passages)
    return Job(tuple(encode_prompt(case.prompt, language_model.tokenizer)), case.references)


def _tokenizer(language_model: LanguageModel) -> Any:
    return language_model.tokenizer


def _check_room(language_model: LanguageModel, jobs: Sequence[Job], limit: int) -> None:
    window, longest = language_model.context_window, max(len(job.prompt) for job in jobs)
    if window is not None and longest + limit > window:
        raise ValueError(
            f"A prompt of {longest} tokens and max_new_tokens={limit} exceed the context window of "
            f"{language_model.name!r} ({window} tokens); ask for fewer tokens, or fewer passages."
        )
