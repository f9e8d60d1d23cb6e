"""Prompts of the speed benchmark, made from recorded samples. No model is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from antiphon.accel.text.messages import Message, encode_prompt
from antiphon.pipelines.benchmark.methods import Job

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel
    from antiphon.pipelines.benchmark.samples import RecordedSample
    from antiphon.retrieval import Passage


@dataclass(frozen=True, slots=True)
class PromptCase:
    """A prompt, as text or as chat messages, and its references."""

    prompt: str | tuple[Message, ...]
    references: tuple[str, ...]


def sample_case(language_model: LanguageModel, sample: RecordedSample, passages: int | None = None) -> PromptCase:
    """Return the prompt of a recorded sample.

    Args:
        passages: None: use the recorded prompt. A number: build a new prompt from the sample's
            query and this number of references.
    """
    if passages is None:
        return PromptCase(sample.prompt, sample.references)
    from antiphon.retrieval import Passage

    texts = enumerate(sample.references[:passages], 1)
    found = [Passage.at(f"{sample.id}, reference {number}", 0, text) for number, text in texts]
    return question_case(language_model, sample.query, found)


def question_case(language_model: LanguageModel, question: str, passages: Sequence[Passage]) -> PromptCase:
    """Return the prompt for a question over passages in the model's prompt format.

    Args:
        passages: Passages of the prompt; if empty, the prompt is the question alone.
    """
    from antiphon.pipelines.prompt import prompt_format
    from antiphon.pipelines.request_plan import passage_references

    if not passages:
        is_chat = language_model.tokenizer.chat_template is not None
        return PromptCase(({"role": "user", "content": question},) if is_chat else question, ())
    prompt = prompt_format(language_model)(question, passages)
    return PromptCase(prompt.content, prompt.answers or tuple(passage_references(passages)))


def make_jobs(
    language_model: LanguageModel,
    samples: Sequence[RecordedSample],
    *,
    limit: int,
    passages: int | None = None,
) -> list[Job]:
    """Return one job per sample.

    Args:
        passages: Number of references in each new prompt; None: the recorded prompts are used.

    Raises:
        ValueError: ``passages`` is negative, ``limit`` is below 1, or a prompt and ``limit`` exceed the context window.
    """
    if limit < 1:
        raise ValueError(f"max_new_tokens is {limit}; at least 1 is needed.")
    if passages is not None and passages < 0:
        raise ValueError(f"passages is {passages}; give 0 to ask without references, or more.")
    cases = [sample_case(language_model, sample, passages) for sample in samples]
    jobs = [Job(tuple(encode_prompt(case.prompt, language_model.tokenizer)), case.references) for case in cases]
    _check_window(language_model, jobs, limit)
    return jobs


def _check_window(language_model: LanguageModel, jobs: Sequence[Job], limit: int) -> None:
    window, longest = language_model.context_window, max(len(job.prompt) for job in jobs)
    if window is not None and longest + limit > window:
        raise ValueError(
            f"A prompt of {longest} tokens and max_new_tokens={limit} exceed the context window of "
            f"{language_model.name!r} ({window} tokens); ask for fewer tokens, or fewer passages."
        )
