"""What the clients of a load ask: recorded questions over five passages each. Knows no server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.pipelines.benchmark.samples import load_samples
from antiphon.pipelines.prompt import chat_prompt
from antiphon.retrieval import Passage


@dataclass(frozen=True, slots=True)
class Asked:
    """One question as messages, and the passages that stand in them."""

    messages: list[dict[str, Any]]
    passages: list[str]


def load_questions(path: str | Path, *, passages: int) -> list[Asked]:
    """The questions of a file of recorded answers, each over its first ``passages`` passages; see `load_samples`."""
    return [_asked(each.query, each.references[:passages]) for each in load_samples(path)]


def _asked(question: str, texts: tuple[str, ...]) -> Asked:
    passages = [Passage.at(f"passage {number}", 0, text) for number, text in enumerate(texts, 1)]
    content = chat_prompt(question, passages).content
    if isinstance(content, str):
        raise TypeError(f"The prompt of {question!r} is a text; servers are asked with messages.")
    return Asked([dict(message) for message in content], list(texts))
