"""Quotes of an answer, and scorers of lines with known values, for tests of passage selection."""

import re
from collections.abc import Callable, Sequence

from antiphon.pipelines.quotes import Quote, quotable_lines
from antiphon.pipelines.relevance import LineScores
from antiphon.retrieval import Passage

_LINE = re.compile(r"\[(\d+)\] (.+)")


def quotes_of(text: str) -> tuple[Quote, ...]:
    """Return the quotes of an answer, one per line; lines of another format are skipped."""
    lines = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return tuple(Quote(int(line[1]), line[2]) for line in lines if line)


def passages_of(*texts: str) -> list[Passage]:
    """Return one passage for each text."""
    return [Passage.at(f"{number}.md", 0, text) for number, text in enumerate(texts)]


def scores_of(**score_by_word: float) -> Callable[[str, Sequence[Passage]], LineScores]:
    """Return a scorer with known values: of lines that contain a word; of other lines it is -9."""

    def score(line: str) -> float:
        return next((score for word, score in score_by_word.items() if word in line), -9.0)

    return lambda question, passages: [
        [score(quote.sentence) for quote in quotes] for quotes in quotable_lines(passages)
    ]
