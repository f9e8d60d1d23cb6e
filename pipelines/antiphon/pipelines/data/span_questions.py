"""The questions of `antiphon bench answers`: five folders of documents that nobody trained for, and what is wanted.

Texts and questions were written for this; no lesson has them. Knows nothing of retrieval or of models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CORPORA = Path(__file__).parent / "corpora"
"""A folder of documents for each kind, and ``questions.jsonl``."""

ENOUGH = 0.7
"""The share of the wanted words that makes an answer right."""

_NO_LETTER = re.compile(r"[\W_]+")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class SpanQuestion:
    """A question about a corpus and the spans of its documents of which each answers it; none where nothing does."""

    corpus: str
    question: str
    source: str | None
    spans: tuple[str, ...]

    @property
    def is_answerable(self) -> bool:
        """Whether the documents answer it."""
        return bool(self.spans)

    def is_in(self, text: str) -> bool:
        """Whether a text holds one of the spans whole, however its lines break and whatever marks stand between."""
        return any(letters(span) in letters(text) for span in self.spans)

    def is_answered_by(self, text: str) -> bool:
        """Whether a text has enough of the words of one of the spans."""
        return any(has_words(text, span) for span in self.spans)


def span_questions(folder: Path = CORPORA) -> list[SpanQuestion]:
    """The questions about the corpora in a folder.

    Raises:
        FileNotFoundError: it has no ``questions.jsonl``.
    """
    lines = (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return [SpanQuestion(**(one | {"spans": tuple(one["spans"])})) for one in map(json.loads, lines)]


def corpora_of(questions: Iterable[SpanQuestion]) -> list[str]:
    """The names of the corpora, in the order of their first question."""
    return list(dict.fromkeys(one.corpus for one in questions))


def letters(text: str) -> str:
    """The letters and digits of a text, small: the same for a word and for the word cut by a hyphen at a line's end."""
    return _NO_LETTER.sub("", text).lower()


def has_words(text: str, wanted: str) -> bool:
    """Whether a text has enough of the words that are wanted."""
    words = _words(wanted)
    return len(words & _words(text)) >= ENOUGH * len(words)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))
