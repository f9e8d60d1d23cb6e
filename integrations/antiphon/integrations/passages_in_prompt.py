"""Find the passages that a prompt contains, however a chain has formatted them. No framework is imported."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from antiphon.retrieval import Passage

_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})|\\([nrtbf\"'\\/])")


class PassagesInPrompt:
    """A prompt that is searched for passages. White space and escapes (JSON, Python, HTML, XML) may differ."""

    def __init__(self, prompt: str) -> None:
        self._forms = tuple({_normalize_spaces(prompt), _normalize_spaces(_unescape(prompt))})

    def contains(self, passage: Passage) -> bool:
        """Return whether the prompt contains the whole text of the passage."""
        text = _normalize_spaces(passage.text)
        return bool(text) and any(text in form for form in self._forms)

    def select(self, passages: Sequence[Passage]) -> tuple[Passage, ...]:
        """Return the passages that the prompt contains, without duplicates."""
        return tuple(dict.fromkeys(passage for passage in passages if self.contains(passage)))


def _normalize_spaces(text: str) -> str:
    return " ".join(text.split())


def _unescape(text: str) -> str:
    plain = _ESCAPED.sub(_unescape_match, text)
    return html.unescape(plain) if "&" in plain else plain


def _unescape_match(found: re.Match[str]) -> str:
    if found[1]:
        return chr(int(found[1], 16))
    return " " if found[2] in "nrtbf" else found[2]
