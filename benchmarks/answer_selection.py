"""What each signal adds to the selection of quoted lines and to refusals, on corpora that chose no threshold.

python -m benchmarks.answer_selection FOLDER...

Each folder is one of `python -m benchmarks.answers`. Lines are ranked by the scores of one encoder or of both; it is a
refusal if the best score is below a threshold. For each corpus the threshold is chosen on the other corpora: it
maximises the share of right answers plus half the share of correct refusals, while at most `MAX_DECLINED` of the
answerable questions are declined.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import AsJson
from antiphon.pipelines.passage_selection import MIN_SCORE, known_share, select_lines
from antiphon.pipelines.question import Question
from antiphon.pipelines.relevance import LineScores, bundled_encoders, line_scores
from antiphon.pipelines.rendering.tables import result_table
from antiphon.retrieval import Passage
from benchmarks.answers import SpanQuestion, corpora_of, index_corpus, load_span_questions
from benchmarks.program import program

MAX_DECLINED = 0.06
"""Maximum share of answerable questions that are declined when a threshold is chosen."""

ANSWERS = {
    "signals": "signals",
    "corpus": "corpus",
    "right": "right",
    "wrongly_declined": "wrongly\ndeclined",
    "declined": "unanswerable\ndeclined",
    "precision": "quoted lines\nof the answer",
}

BOTH = "both encoders, known words"

_WORD = re.compile(r"\w+")

Scorer = Callable[[str, Sequence[Passage]], LineScores]


def variants() -> dict[str, tuple[Scorer, float]]:
    """Return the scorer of lines, and the weight of known words, by the name of the variant."""
    line, cross = (encoder.scores for encoder in bundled_encoders())
    return {
        "line encoder": (line, 0.0),
        "cross-encoder": (cross, 0.0),
        "both encoders": (line_scores, 0.0),
        BOTH: (line_scores, 1.0),
    }


def measure(folders: Sequence[Path]) -> Iterator[dict[str, Outcome]]:
    """Yield the outcome of each variant for each question of folders with corpora and questions."""
    for folder in folders:
        questions = load_span_questions(folder)
        for corpus in corpora_of(questions):
            with TemporaryDirectory() as temporary:
                retriever, _ = index_corpus(folder / corpus, Path(temporary) / "index", "minilm")
                for question in (one for one in questions if one.corpus == corpus):
                    passages = retriever.search(question.question, 5)
                    yield {name: Outcome.of(question, passages, *signals) for name, signals in variants().items()}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a variant for a question, before its threshold is chosen.

    Attributes:
        corpus: Corpus of the question.
        is_answerable: Whether the corpus has an answer.
        score: The score that is compared with the threshold.
        is_right: Whether the quoted lines answer.
        precision: Share of the quoted lines that belong to the answer.
    """

    corpus: str
    is_answerable: bool
    score: float
    is_right: bool
    precision: float

    @classmethod
    def of(cls, question: SpanQuestion, passages: Sequence[Passage], scores: Scorer, known_weight: float) -> Outcome:
        """Return the outcome of a question with its retrieved passages."""
        asked = Question(question.question)
        _, quotes = select_lines(asked, passages, scores=scores, min_score=-inf)
        belonging = sum(belongs(question, quote.sentence) for quote in quotes)
        best = max((score for of_passage in scores(asked.complete, passages) for score in of_passage), default=-1e9)
        return cls(
            question.corpus,
            question.is_answerable,
            best + known_weight * known_share(asked.complete, passages),
            question.is_answerable and question.is_answered_by("\n".join(quote.sentence for quote in quotes)),
            belonging / len(quotes) if quotes else 0.0,
        )


def belongs(question: SpanQuestion, line: str) -> bool:
    """Return whether a quoted line belongs to the answer: half of its words are in an expected span, or a phrase is."""
    words = set(_WORD.findall(line.lower()))
    in_span = (len(words & set(_WORD.findall(span.lower()))) >= len(words) / 2 for span in question.spans)
    phrases = (one for phrase in question.phrases for one in phrase.split("|"))
    return any(in_span) or any(phrase.lower() in line.lower() for phrase in phrases)


def choose_threshold(outcomes: Sequence[Outcome]) -> float:
    """Return the threshold that maximises right answers and half the correct refusals, see the module."""
    answerable = [each for each in outcomes if each.is_answerable]
    others = [each for each in outcomes if not each.is_answerable]

    def value(threshold: float) -> tuple[bool, float]:
        right = _share([each.is_right and each.score >= threshold for each in answerable])
        declined = _share([each.score < threshold for each in answerable])
        return declined <= MAX_DECLINED, right + _share([each.score < threshold for each in others]) / 2

    return max(sorted({each.score for each in outcomes}), key=value)


def held_out_rows(name: str, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return the figures of each corpus with the threshold of the other corpora, and those of all corpora."""
    corpora = list(dict.fromkeys(each.corpus for each in outcomes))
    decided = []
    for corpus in corpora:
        threshold = choose_threshold([each for each in outcomes if each.corpus != corpus])
        decided += [(each, each.score >= threshold) for each in outcomes if each.corpus == corpus]
    groups = {corpus: [pair for pair in decided if pair[0].corpus == corpus] for corpus in corpora} | {"all": decided}
    return [{"signals": name, "corpus": corpus, **_figures(pairs)} for corpus, pairs in groups.items()]


def _figures(decided: Sequence[tuple[Outcome, bool]]) -> dict[str, float]:
    answerable = [(each, is_answered) for each, is_answered in decided if each.is_answerable]
    precisions = [each.precision for each, is_answered in answerable if is_answered]
    return {
        "right": _share([each.is_right and is_answered for each, is_answered in answerable]),
        "wrongly_declined": _share([not is_answered for _, is_answered in answerable]),
        "declined": _share([not is_answered for each, is_answered in decided if not each.is_answerable]),
        "precision": round(sum(precisions) / len(precisions), 4) if precisions else 0.0,
    }


def _share(values: Sequence[bool]) -> float:
    return round(sum(values) / len(values), 4) if values else 0.0


def answer_selection(
    folders: Annotated[list[Path], typer.Argument(help="Folders of corpora, see `python -m benchmarks.answers`.")],
    corpora: Annotated[bool, typer.Option("--corpora", help="Show each corpus, not only all of them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare the signals that select quoted lines, on held-out corpora."""
    console.quiet_libraries()
    measured = []
    with console.progress_bars() as bar:
        for outcomes in measure(folders):
            measured.append(outcomes)
            bar("Measuring", len(measured), sum(len(load_span_questions(folder)) for folder in folders))
    rows = [row for name in variants() for row in held_out_rows(name, [outcomes[name] for outcomes in measured])]
    threshold = choose_threshold([outcomes[BOTH] for outcomes in measured])
    if as_json:
        typer.echo(json.dumps({"kind": "selection", "rows": rows, "min_score": threshold}))
        return
    shown = [row for row in rows if corpora or row["corpus"] == "all"]
    console.out.print(result_table(f"{len(measured)} questions, thresholds of other corpora", ANSWERS, shown))
    console.out.print(f"min_score of all corpora: {threshold:.2f} (in use: {MIN_SCORE})")


app = program(answer_selection)

if __name__ == "__main__":
    app()
