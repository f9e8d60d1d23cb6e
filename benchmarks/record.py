"""Record a model's answers to the demo's questions, in the format that the other benchmarks read.

python -m benchmarks.record answers.jsonl
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.accel.progress import Progress
from antiphon.pipelines.benchmark.samples import RecordedSample
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import Device, Precision
from benchmarks.program import program

if TYPE_CHECKING:
    from antiphon.pipelines.answer import AnswerStream
    from antiphon.pipelines.rag import Rag


def record_answers(
    rag: Rag, questions: Sequence[str], *, name: str, max_new_tokens: int = 256, report: Progress | None = None
) -> Iterator[RecordedSample]:
    """Yield a sample for each question, whose references are the retrieved passages.

    The recorded prompt is the whole text that the model was given, including special tokens.

    Args:
        rag: Answers the questions.
        questions: The questions.
        name: Prefix of the samples' ids.
        max_new_tokens: Maximum number of new tokens per answer.
        report: Called with stage, done and total.

    Raises:
        ValueError: a decoded prompt is tokenized differently, so a text cannot represent the prompt.
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
    """Return a sample as one line of JSON."""
    return json.dumps(asdict(sample), ensure_ascii=False)


def _prompt_text(rag: Rag, stream: AnswerStream) -> str:
    from antiphon.accel.text.messages import encode_prompt

    tokenizer = rag.language_model.tokenizer
    content = stream.plan.prompt.content
    if isinstance(content, str):
        return content
    if tokenizer is None:
        raise ValueError(f"The model {rag.language_model.name!r} runs on a server; record with one that runs here.")
    tokens = encode_prompt(content, tokenizer)
    written = str(tokenizer.decode(tokens))
    # The tokenizer adds BOS to every text, and the chat template may have written one already.
    for text in (written, written.removeprefix(tokenizer.bos_token or "")):
        if encode_prompt(text, tokenizer) == tokens:
            return text
    raise ValueError(
        f"The tokenizer of {rag.language_model.name!r} reads its own prompt in other tokens, so a recording would "
        "replay another prompt. Record with another model."
    )


def record(
    out: Annotated[Path, typer.Argument(help="The JSONL file to write.")],
    model: Annotated[str, typer.Option("--model", "-m", help="reader, smollm2, a folder or a hub name.")] = "reader",
    dtype: Precision = "float32",
    k: Annotated[int, typer.Option("--k", "-k", help="Number of passages in the prompt.")] = 3,
    device: Device = None,
) -> None:
    """Ask the demo's 40 questions, and write prompts, passages and answers as samples."""
    from antiphon.accel.files import write_file
    from antiphon.pipelines.cli.preparation import dtype_named, load_language_model
    from antiphon.pipelines.rag import Rag
    from antiphon.retrieval import Retriever
    from benchmarks.demo_data import demo_index, demo_questions

    console.quiet_libraries()
    loaded = load_language_model(model, device=device, dtype=dtype_named(dtype))
    rag = Rag(Retriever.open(demo_index()), loaded, k=k)
    questions = [each.question for each in demo_questions()]
    with console.progress_bars() as report:
        lines = [as_line(sample) for sample in record_answers(rag, questions, name=out.stem, report=report)]
    write_file(out, "".join(f"{line}\n" for line in lines).encode(), mode=None)


app = program(record)

if __name__ == "__main__":
    app()
