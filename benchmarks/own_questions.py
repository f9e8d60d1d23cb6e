"""Ask the questions of a folder of corpora as `antiphon ask` and `antiphon chat` do, and write answers and verdicts.

python -m benchmarks.own_questions FOLDER --out answers.jsonl
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import ASKED_MODEL, AsJson, EngineOption
from antiphon.pipelines.rendering.tables import result_table
from benchmarks.answers import SpanQuestion, corpora_of, load_span_questions
from benchmarks.program import program

if TYPE_CHECKING:
    from antiphon.accel import TextModel
    from antiphon.pipelines.answer import AnswerStream
    from antiphon.retrieval import Passage

CONVERSATIONS = "conversations.jsonl"
"""File of conversations in a folder of corpora: as questions, but with ``turns``; the last one is judged."""

COLUMNS = {
    "corpus": "corpus",
    "questions": "questions",
    "right": "right",
    "wrong": "wrong",
    "declined": "answerable\ndeclined",
    "unanswerable_declined": "others\ndeclined",
    "recall@5": "recall\nat 5",
    "first_s": "first\noutput, s",
    "seconds": "answer, s",
}


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question with its answer.

    Attributes:
        corpus: Folder of the corpus.
        before: The earlier questions of a conversation.
        question: The question.
        expected: Texts, each of which answers the question.
        verdict: "right", "wrong" or "declined"; of a question without an answer "declined" or "answered".
        is_found: Whether a retrieved passage contains an expected text.
        text: The answer.
        searched: The text that passages were retrieved for.
        sources: File and place of each retrieved passage.
        passages: The retrieved passages.
        citations: Number of verbatim quotes.
        first_s: Seconds until the first output.
        seconds: Seconds until the end of the answer.
    """

    corpus: str
    before: tuple[str, ...]
    question: str
    expected: tuple[str, ...]
    verdict: str
    is_found: bool
    text: str
    searched: str
    sources: tuple[str, ...]
    passages: tuple[str, ...]
    citations: int
    first_s: float
    seconds: float


def ask_questions(
    folder: Path, language_model: TextModel, *, embedder: str = "auto", **options: Any
) -> Iterator[AskedQuestion]:
    """Yield each question of a folder of corpora with its answer, then each conversation.

    Args:
        folder: Folder with one subfolder per corpus, and ``questions.jsonl``, ``conversations.jsonl`` or both.
        language_model: Model that answers.
        embedder: Embedder name.
        **options: Options of `Rag.stream`.
    """
    from antiphon.pipelines.chat import Chat
    from antiphon.pipelines.rag import Rag
    from antiphon.retrieval import Retriever, build_index

    asked = list(_load(folder))
    for corpus in corpora_of(question for _, question in asked):
        with TemporaryDirectory() as temporary:
            build_index([folder / corpus], Path(temporary) / "index", embedder=embedder)
            rag = Rag(Retriever.open(Path(temporary) / "index"), language_model)
            for before, question in asked:
                if question.corpus == corpus:
                    pipeline: Chat | Rag = rag
                    if before:
                        pipeline = Chat(rag)
                    for earlier in before:
                        pipeline.ask(earlier, **options)
                    start = perf_counter()
                    stream = pipeline.stream(question.question, **options)
                    yield _judge(before, question, stream, rag.retrieve(stream.question), start)


def _load(folder: Path) -> Iterator[tuple[tuple[str, ...], SpanQuestion]]:
    """Yield the questions asked before, if any, and the question."""
    if (folder / "questions.jsonl").exists():
        yield from (((), question) for question in load_span_questions(folder))
    if (folder / CONVERSATIONS).exists():
        for fields in map(json.loads, (folder / CONVERSATIONS).read_text(encoding="utf-8").splitlines()):
            *before, last = fields["turns"]
            texts = (tuple(fields.get(key, ())) for key in ("spans", "phrases"))
            yield tuple(before), SpanQuestion(fields["corpus"], last, fields.get("source"), *texts)


def _judge(
    before: tuple[str, ...], asked: SpanQuestion, stream: AnswerStream, found: Sequence[Passage], start: float
) -> AskedQuestion:
    """Read a stream to its end and compare the answer with the expected one."""
    first = None
    for _ in stream:
        first = first or perf_counter() - start
    seconds = perf_counter() - start
    answer = stream.answer
    verdict = "declined" if answer.is_refusal else "right" if asked.is_answered_by(answer.text) else "wrong"
    return AskedQuestion(
        asked.corpus,
        before,
        asked.question,
        asked.spans,
        verdict if asked.is_answerable or answer.is_refusal else "answered",
        any(asked.is_in(passage.text) for passage in found),
        answer.text,
        stream.question.complete,
        tuple(_place(passage) for passage in found),
        tuple(passage.text for passage in found),
        len(answer.citations),
        round(first or seconds, 2),
        round(seconds, 2),
    )


def _place(passage: Passage) -> str:
    return f"{Path(passage.source).name}: {passage.metadata.get('title', '')} {passage.location}".strip()


def question_figures(name: str, asked: Sequence[AskedQuestion]) -> dict[str, Any]:
    """Return the figures of a corpus: shares of verdicts, recall, and mean seconds.

    Args:
        name: Name in the first column.
        asked: Its questions.
    """
    answerable = [one for one in asked if one.expected]
    others = [one for one in asked if not one.expected]
    row: dict[str, Any] = {"corpus": name, "questions": len(asked)}
    row |= {
        verdict: _mean([one.verdict == verdict for one in answerable]) for verdict in ("right", "wrong", "declined")
    }
    row["unanswerable_declined"] = _mean([one.verdict == "declined" for one in others])
    row["recall@5"] = _mean([one.is_found for one in answerable])
    return row | {key: _mean([getattr(one, key) for one in asked]) for key in ("first_s", "seconds")}


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None


def own_questions(
    folder: Annotated[Path, typer.Argument(help="Folder of corpora with questions.jsonl or conversations.jsonl.")],
    out: Annotated[Path, typer.Option(help="File for one line of JSON per question.")],
    model: Annotated[str, typer.Option("--model", "-m", help="Model that answers.")] = ASKED_MODEL,
    engine: EngineOption = "auto",
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of new tokens per answer.")] = 256,
    as_json: AsJson = False,
) -> None:
    """Ask every question as `antiphon ask` and `antiphon chat` do, and count right answers and refusals."""
    from antiphon.pipelines.cli.preparation import prepare_model

    console.quiet_libraries()
    language_model = prepare_model(model, engine=engine)()
    asked = []
    with out.open("w", encoding="utf-8") as file:
        options: dict[str, Any] = {"max_new_tokens": max_new_tokens}
        for one in ask_questions(folder, language_model, **options):
            asked.append(one)
            print(json.dumps(asdict(one), ensure_ascii=False), file=file, flush=True)
    single = [one for one in asked if not one.before]
    names = dict.fromkeys(one.corpus for one in single)
    rows = [question_figures(name, [one for one in single if one.corpus == name]) for name in names]
    rows += [question_figures("all", single)] if single else []
    if turns := [one for one in asked if one.before]:
        rows.append(question_figures("conversations", turns))
    if as_json:
        typer.echo(json.dumps({"kind": "own_questions", "model": model, "rows": rows}))
        return
    console.out.print(result_table(f"{len(asked)} questions, {model}", COLUMNS, rows))


app = program(own_questions)

if __name__ == "__main__":
    app()
