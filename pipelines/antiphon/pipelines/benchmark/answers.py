"""Where answers are lost: cutting into passages, the search, the prompt, or the reader. Measures no time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from antiphon.pipelines.data.span_questions import SpanQuestion, corpora_of
from antiphon.pipelines.prompt import is_refusal
from antiphon.pipelines.quotes import quotable_lines

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel
    from antiphon.retrieval import Passage, Retriever

DEPTH = 10
"""How far down a ranking is looked at."""

TraceReport = Callable[["AnswerTrace"], None]


@dataclass(frozen=True, slots=True)
class AnswerTrace:
    """A question and how far its answer came.

    ``is_cut`` says that no passage has the wanted span whole. ``rank`` is the place, from 1, of the first passage
    found that has it, ``quotable`` that of the first one of which a line has it. ``text`` is what was said to the
    first ``k`` passages, None where no reader was asked.
    """

    asked: SpanQuestion
    is_cut: bool
    rank: int | None
    quotable: int | None
    k: int
    text: str | None = None

    @property
    def is_declined(self) -> bool:
        """Whether the reader said that the passages do not say."""
        return self.text is not None and is_refusal(self.text)

    @property
    def is_right(self) -> bool:
        """Whether the answer has what was wanted."""
        return self.text is not None and self.asked.is_answered_by(self.text)

    def is_found(self, k: int) -> bool:
        """Whether one of the first ``k`` passages has the wanted span."""
        return self.rank is not None and self.rank <= k

    @property
    def lost(self) -> str:
        """Where the answer was lost: chunking, retrieval, prompt or reader; empty where none was."""
        if self.is_right or not self.asked.is_answerable:
            return ""
        if self.is_cut:
            return "chunking"
        if not self.is_found(self.k):
            return "retrieval"
        return "reader" if self.quotable is not None and self.quotable <= self.k else "prompt"


def trace_answers(
    questions: Sequence[SpanQuestion],
    folder: Path,
    *,
    embedder: str = "minilm",
    language_model: LanguageModel | None = None,
    k: int = 5,
    report: TraceReport = lambda traced: None,
    **generation: Any,
) -> list[AnswerTrace]:
    """Index each corpus below ``folder``, search for each question, and have the reader answer, if there is one."""
    traced = []
    for corpus in corpora_of(questions):
        with TemporaryDirectory() as beside:
            retriever, passages = _indexed(folder / corpus, Path(beside) / "index", embedder)
            for asked in (one for one in questions if one.corpus == corpus):
                traced.append(_trace(asked, passages, retriever, language_model, k, generation))
                report(traced[-1])
    return traced


def _indexed(documents: Path, out: Path, embedder: str) -> tuple[Retriever, list[Passage]]:
    """A search over the documents, and every passage of theirs."""
    from antiphon.retrieval import Retriever, build_index

    count = build_index([documents], out, embedder=embedder).passages
    retriever = Retriever.open(out)
    return retriever, retriever.index.nearest(retriever.embedder.embed_queries(["everything"])[0], count)


def _trace(
    asked: SpanQuestion,
    passages: Sequence[Passage],
    retriever: Retriever,
    language_model: LanguageModel | None,
    k: int,
    generation: dict[str, Any],
) -> AnswerTrace:
    from antiphon.pipelines.rag import Rag

    found = retriever.search(asked.question, DEPTH)
    return AnswerTrace(
        asked,
        is_cut=asked.is_answerable and not any(asked.is_in(passage.text) for passage in passages),
        rank=_first(asked.is_in(passage.text) for passage in found),
        quotable=_first(_can_quote(asked, passage) for passage in found),
        k=k,
        text=Rag(retriever, language_model, k=k).ask(asked.question, **generation).text if language_model else None,
    )


def _can_quote(asked: SpanQuestion, passage: Passage) -> bool:
    return asked.is_answered_by("\n".join(quote.sentence for quote in quotable_lines([passage])[0]))


def _first(hits: Iterator[bool]) -> int | None:
    return next((place for place, hit in enumerate(hits, 1) if hit), None)


def answer_figures(traced: Sequence[AnswerTrace]) -> list[dict[str, Any]]:
    """A row for each corpus and one for all: counts of answerable questions, and shares of 1."""
    names = corpora_of(one.asked for one in traced)
    rows = [_figures(name, [one for one in traced if one.asked.corpus == name]) for name in names]
    return [*rows, _figures("all", traced)]


def _figures(name: str, traced: Sequence[AnswerTrace]) -> dict[str, Any]:
    wanted = [one for one in traced if one.asked.is_answerable]
    others = [one for one in traced if not one.asked.is_answerable]
    row: dict[str, Any] = {"corpus": name, "answerable": len(wanted), "unanswerable": len(others)}
    row["cut"] = sum(one.is_cut for one in wanted)
    row |= {f"recall@{k}": _share([one.is_found(k) for one in wanted]) for k in (3, 5, DEPTH)}
    if not any(one.text is not None for one in traced):
        return row
    row |= {f"lost_{stage}": sum(one.lost == stage for one in wanted) for stage in ("retrieval", "prompt", "reader")}
    row["right"] = _share([one.is_right for one in wanted])
    row["wrongly_declined"] = _share([one.is_declined for one in wanted])
    return row | {"declined": _share([one.is_declined for one in others])}


def _share(values: Sequence[bool]) -> float:
    return round(sum(values) / len(values), 4) if values else 0.0
