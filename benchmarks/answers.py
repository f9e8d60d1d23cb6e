"""Answer benchmark: which stage loses an answer: chunking, retrieval, prompt, or the reader (the model).

python -m benchmarks.answers benchmarks/corpora
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.pipelines.benchmark.facts import command_line
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import EXTRACTIVE, AsJson, Device
from antiphon.pipelines.prompt import is_refusal
from antiphon.pipelines.quotes import quotable_lines
from antiphon.pipelines.rendering.tables import result_table
from benchmarks.program import program

if TYPE_CHECKING:
    from antiphon.accel import TextModel
    from antiphon.retrieval import Passage, Retriever

QUESTIONS = "questions.jsonl"
"""File of questions in a folder of corpora."""

DEPTH = 10
"""Number of passages retrieved for each question."""

SUFFICIENT_WORDS = 0.7
"""An answer is right if it has this share of the words of an expected span."""

ANSWERS = {
    "corpus": "corpus",
    "answerable": "answer-\nable",
    "unanswerable": "not",
    "cut": "lost in\nchunking",
    "recall@3": "recall\nat 3",
    "recall@5": "recall\nat 5",
    "recall@10": "recall\nat 10",
    "lost_retrieval": "lost in\nretrieval",
    "lost_prompt": "lost in\nprompt",
    "lost_reader": "lost by\nreader",
    "right": "right",
    "wrongly_declined": "answerable\ndeclined",
    "declined": "others\ndeclined",
}

_NO_LETTER = re.compile(r"[\W_]+")
_WORD = re.compile(r"\w+")
_MARKS = re.compile(r"[\s*`]+")


@dataclass(frozen=True, slots=True)
class SpanQuestion:
    """A question about a corpus with the text spans that answer it.

    Attributes:
        corpus: Folder of the corpus.
        question: The question.
        source: File of the spans; None if the corpus has no answer.
        spans: Texts, each of which answers the question; empty if the corpus has no answer.
        phrases: Phrases that a right answer contains, each with its alternatives ("a|b"); empty: a right answer has
            the words of a span.
    """

    corpus: str
    question: str
    source: str | None
    spans: tuple[str, ...]
    phrases: tuple[str, ...] = ()

    @property
    def is_answerable(self) -> bool:
        """Whether the corpus answers the question."""
        return bool(self.spans)

    def is_in(self, text: str) -> bool:
        """Return whether a text contains a whole span, ignoring line breaks and punctuation."""
        return any(letters_of(span) in letters_of(text) for span in self.spans)

    def is_answered_by(self, text: str) -> bool:
        """Return whether a text has all phrases, or without phrases enough of the words of a span."""
        if self.phrases:
            return all(any(has_phrase(text, one) for one in phrase.split("|")) for phrase in self.phrases)
        return any(has_words(text, span) for span in self.spans)


def load_span_questions(folder: Path) -> list[SpanQuestion]:
    """Load the questions of a folder of corpora.

    Raises:
        FileNotFoundError: the folder has no ``questions.jsonl``.
    """
    lines = (folder / QUESTIONS).read_text(encoding="utf-8").splitlines()
    return [SpanQuestion(**{name: _hashable(value) for name, value in json.loads(line).items()}) for line in lines]


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def corpora_of(questions: Iterable[SpanQuestion]) -> list[str]:
    """Return the names of the corpora in the order of their first question."""
    return list(dict.fromkeys(one.corpus for one in questions))


def letters_of(text: str) -> str:
    """Return the letters and digits of a text in lower case; a word hyphenated at a line end equals the whole word."""
    return _NO_LETTER.sub("", text).lower()


def has_phrase(text: str, phrase: str) -> bool:
    """Return whether a text contains a phrase in whole words, ignoring case, line breaks, ``*`` and backquotes."""
    words = re.escape(_MARKS.sub(" ", phrase.lower()).strip())
    return re.search(rf"(?<!\w){words}(?!\w)", _MARKS.sub(" ", text.lower())) is not None


def has_words(text: str, expected: str) -> bool:
    """Return whether ``text`` has at least `SUFFICIENT_WORDS` of the words of ``expected``."""
    words = _words(expected)
    return len(words & _words(text)) >= SUFFICIENT_WORDS * len(words)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


TraceReport = Callable[["AnswerTrace"], None]


@dataclass(frozen=True, slots=True)
class AnswerTrace:
    """One question traced through the pipeline.

    Attributes:
        question: The question.
        is_cut: Whether chunking has split every expected span, so that no passage contains a whole one.
        rank: Rank (from 1) of the first retrieved passage that contains a span; None if there is none.
        quotable_rank: Rank of the first retrieved passage with a quotable line that answers; None if there is none.
        k: Number of passages in the prompt.
        text: The answer; None if no model was asked.
    """

    question: SpanQuestion
    is_cut: bool
    rank: int | None
    quotable_rank: int | None
    k: int
    text: str | None = None

    @property
    def is_refusal(self) -> bool:
        """Whether the answer is a refusal."""
        return self.text is not None and is_refusal(self.text)

    @property
    def is_right(self) -> bool:
        """Whether the answer has enough of the expected words."""
        return self.text is not None and self.question.is_answered_by(self.text)

    def is_found(self, k: int) -> bool:
        """Return whether one of the first ``k`` passages contains a span."""
        return self.rank is not None and self.rank <= k

    @property
    def lost_at(self) -> str:
        """Stage that lost the answer: chunking, retrieval, prompt or reader; empty if none did."""
        if self.is_right or not self.question.is_answerable:
            return ""
        if self.is_cut:
            return "chunking"
        if not self.is_found(self.k):
            return "retrieval"
        return "reader" if self.quotable_rank is not None and self.quotable_rank <= self.k else "prompt"


def trace_answers(
    questions: Sequence[SpanQuestion],
    folder: Path,
    *,
    embedder: str = "minilm",
    language_model: TextModel | None = None,
    k: int = 5,
    report: TraceReport = lambda trace: None,
    **generation: Any,
) -> list[AnswerTrace]:
    """Index each corpus, search for each question and let the model answer it.

    Args:
        questions: Questions about the corpora.
        folder: Folder with one subfolder per corpus.
        embedder: Embedder name.
        language_model: Model that answers; None to measure retrieval only.
        k: Number of passages in the prompt.
        report: Called with each trace.
        **generation: Options of `Rag.ask`.
    """
    traces = []
    for corpus in corpora_of(questions):
        with TemporaryDirectory() as temporary:
            retriever, passages = index_corpus(folder / corpus, Path(temporary) / "index", embedder)
            for question in (one for one in questions if one.corpus == corpus):
                traces.append(_trace(question, passages, retriever, language_model, k, generation))
                report(traces[-1])
    return traces


def index_corpus(documents: Path, out: Path, embedder: str) -> tuple[Retriever, list[Passage]]:
    """Index documents; return a retriever and all passages."""
    from antiphon.retrieval import Retriever, build_index

    count = build_index([documents], out, embedder=embedder).passages
    retriever = Retriever.open(out)
    return retriever, retriever.index.vector_search(retriever.embedder.embed_queries(["everything"])[0], count)


def _trace(
    question: SpanQuestion,
    passages: Sequence[Passage],
    retriever: Retriever,
    language_model: TextModel | None,
    k: int,
    generation: dict[str, Any],
) -> AnswerTrace:
    from antiphon.pipelines.rag import Rag

    found = retriever.search(question.question, DEPTH)
    text = Rag(retriever, language_model, k=k).ask(question.question, **generation).text if language_model else None
    return AnswerTrace(
        question,
        is_cut=question.is_answerable and not any(question.is_in(passage.text) for passage in passages),
        rank=_first_rank(question.is_in(passage.text) for passage in found),
        quotable_rank=_first_rank(_can_quote(question, passage) for passage in found),
        k=k,
        text=text,
    )


def _can_quote(question: SpanQuestion, passage: Passage) -> bool:
    return question.is_answered_by("\n".join(quote.sentence for quote in quotable_lines([passage])[0]))


def _first_rank(hits: Iterator[bool]) -> int | None:
    return next((rank for rank, hit in enumerate(hits, 1) if hit), None)


def answer_figures(traces: Sequence[AnswerTrace]) -> list[dict[str, Any]]:
    """Return one row per corpus and one for all: numbers of questions, and rates between 0 and 1."""
    names = corpora_of(one.question for one in traces)
    rows = [_figures(name, [one for one in traces if one.question.corpus == name]) for name in names]
    return [*rows, _figures("all", traces)]


def _figures(name: str, traces: Sequence[AnswerTrace]) -> dict[str, Any]:
    answerable = [one for one in traces if one.question.is_answerable]
    others = [one for one in traces if not one.question.is_answerable]
    row: dict[str, Any] = {"corpus": name, "answerable": len(answerable), "unanswerable": len(others)}
    row["cut"] = sum(one.is_cut for one in answerable)
    row |= {f"recall@{k}": _share([one.is_found(k) for one in answerable]) for k in (3, 5, DEPTH)}
    if not any(one.text is not None for one in traces):
        return row
    stages = ("retrieval", "prompt", "reader")
    row |= {f"lost_{stage}": sum(one.lost_at == stage for one in answerable) for stage in stages}
    row["right"] = _share([one.is_right for one in answerable])
    row["wrongly_declined"] = _share([one.is_refusal for one in answerable])
    return row | {"declined": _share([one.is_refusal for one in others])}


def _share(values: Sequence[bool]) -> float:
    return round(sum(values) / len(values), 4) if values else 0.0


def answers(
    folder: Annotated[
        Path, typer.Argument(help="Folder with one subfolder of documents per corpus, and questions.jsonl.")
    ],
    model: Annotated[
        str,
        typer.Option("--model", "-m", help="extractive, reader, smollm2, a folder, or none to measure retrieval only."),
    ] = "extractive",
    k: Annotated[int, typer.Option("--k", "-k", help="Number of passages in the prompt.")] = 5,
    embedder: Annotated[str, typer.Option(help="minilm, bge-m3, a folder or a hub name.")] = "minilm",
    corpus: Annotated[str | None, typer.Option(help="Measure this corpus only.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or auto.")] = "auto",
    show: Annotated[
        bool, typer.Option("--show", help="Print every question, its answer, and the stage that lost it.")
    ] = False,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Ask questions about your documents, and count which stage (chunking, retrieval, prompt, model) loses answers."""
    from antiphon.pipelines.cli.preparation import dtype_named, load_language_model
    from antiphon.pipelines.extractive_model import ExtractiveModel

    console.quiet_libraries()
    questions = [one for one in load_span_questions(folder) if corpus in (None, one.corpus)]
    reader: TextModel | None = ExtractiveModel() if model == EXTRACTIVE else None
    if model not in (EXTRACTIVE, "none"):
        reader = load_language_model(model, device=device, dtype=dtype_named(dtype))
    with console.progress_bars() as bar:
        done: list[AnswerTrace] = []

        def report(trace: AnswerTrace) -> None:
            done.append(trace)
            bar("Asking", len(done), len(questions))
            if show:
                typer.echo(_trace_text(trace))

        traces = trace_answers(questions, folder, embedder=embedder, language_model=reader, k=k, report=report)
    rows = answer_figures(traces)
    if as_json:
        facts = {
            "kind": "answers",
            "command": command_line("python -m benchmarks.answers"),
            "model": model,
            "embedder": embedder,
            "k": k,
        }
        typer.echo(json.dumps(facts | {"corpora": rows}))
        return
    columns = {key: heading for key, heading in ANSWERS.items() if key in rows[0]}
    console.out.print(result_table(f"{len(traces)} questions, {k} passages, {model}", columns, rows))


def _trace_text(trace: AnswerTrace) -> str:
    expected = " / ".join(trace.question.spans) or "-"
    place = "cut" if trace.is_cut else f"at {trace.rank}" if trace.rank else "not found"
    verdict = "right" if trace.is_right else "declined" if trace.is_refusal else trace.lost_at or "answered"
    answer = f"\n  answer   {trace.text}" if trace.text is not None else ""
    return f"{trace.question.corpus}: {trace.question.question}\n  expected {expected} ({place})\n  {verdict}{answer}"


app = program(answers)

if __name__ == "__main__":
    app()
