"""Whether a passage stands whole in a prompt, however the prompt was put together. Knows no framework."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from antiphon.retrieval import Passage

_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})|\\([nrtbf\"'\\/])")


class PromptPassages:
    """A prompt that is asked for passages; white space does not count, nor do escapes of JSON, Python, HTML or XML."""

    def __init__(self, prompt: str) -> None:
        self._forms = tuple({_spaced(prompt), _spaced(_unescaped(prompt))})

    def has(self, passage: Passage) -> bool:
        """Whether all of its words stand in the prompt, one after the other."""
        text = _spaced(passage.text)
        return bool(text) and any(text in form for form in self._forms)

    def of(self, passages: Sequence[Passage]) -> tuple[Passage, ...]:
        """Those that stand in the prompt, each once."""
        return tuple(dict.fromkeys(passage for passage in passages if self.has(passage)))


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _unescaped(text: str) -> str:
    plain = _ESCAPED.sub(lambda found: _plain(found) if "\\" in text else found[0], text)
    return html.unescape(plain) if "&" in plain else plain


def _plain(found: re.Match[str]) -> str:
    if found[1]:
        return chr(int(found[1], 16))
    return " " if found[2] in "nrtbf" else found[2]
