"""Records answers of a model to questions, in the format that the other benchmarks read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from antiphon.pipelines.benchmark.samples import RecordedSample
from antiphon.pipelines.progress import Progress

if TYPE_CHECKING:
    from antiphon.pipelines.answer import AnswerStream
    from antiphon.pipelines.rag import Rag


def recorded(
    rag: Rag, questions: Sequence[str], *, name: str, max_new_tokens: int = 256, report: Progress | None = None
) -> Iterator[RecordedSample]:
    """What a model answers to each question: a sample whose references are the passages that were found.

    The prompt is the whole text that the model was given, with the special tokens written out.

    Raises:
        ValueError: the tokenizer reads a prompt otherwise than it wrote it, so that a text cannot stand for it.
    """
    for number, question in enumerate(questions, start=1):
        if report is not None:
            report("Asking", number - 1, len(questions))
        stream = rag.stream(question, max_new_tokens=max_new_tokens).to_end()
        yield RecordedSample(
            id=f"{name}-{number:03}",
            task="rag",
            query=question,
            references=tuple(passage.text for passage in stream.passages),
            prompt=_prompt_text(rag, stream),
            response=stream.answer.text,
        )
    if report is not None:
        report("Asking", len(questions), len(questions))


def as_line(sample: RecordedSample) -> str:
    """The sample as one line of JSON."""
    return json.dumps(asdict(sample), ensure_ascii=False)


def _prompt_text(rag: Rag, stream: AnswerStream) -> str:
    from antiphon.accel.text.messages import prompt_tokens

    tokenizer = rag.language_model.tokenizer
    content = stream.prompt.content
    if isinstance(content, str):
        return content
    if tokenizer is None:
        raise ValueError(f"The model {rag.language_model.name!r} runs on a server; record with one that runs here.")
    tokens = prompt_tokens(content, tokenizer)
    written = str(tokenizer.decode(tokens))
    # The tokenizer puts a beginning of sequence before any text, and the chat template may have written one.
    for text in (written, written.removeprefix(tokenizer.bos_token or "")):
        if prompt_tokens(text, tokenizer) == tokens:
            return text
    raise ValueError(
        f"The tokenizer of {rag.language_model.name!r} reads its own prompt in other tokens; a recording of it would "
        "replay something else. Record with another model."
    )
