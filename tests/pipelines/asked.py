"""Passages that are asked one by one, and what is known of their lines beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antiphon.pipelines.each import AskedPassages, Chosen, Join, Measures, choose_passages
from antiphon.pipelines.prompt import DECLINED, Prompt
from antiphon.retrieval import Passage
from tests.pipelines.scripted import Scripted

WAX, HONEY = "[1] Wax melts.", "[1] Honey keeps for years."


def alone(passages: Sequence[Passage]) -> None:
    """No two passages fit into one prompt."""


def asked_of(*lines: str) -> list[AskedPassages]:
    """A passage for each of these texts, which may have several lines."""
    return [
        AskedPassages((Passage.at("a.md", place, text),), Prompt("?", answers=(DECLINED, text)), f"?{place}")
        for place, text in enumerate(lines)
    ]


def measures_of(said: Mapping[str, float], similar: float = 0.5) -> Measures:
    """Relevance that is known beforehand by a word of what is said; of all else it is 0. All are as similar."""

    def relevance(pairs: Sequence[tuple[Passage, str]]) -> list[float]:
        return [next((fit for word, fit in said.items() if word in text), 0.0) for _, text in pairs]

    return Measures(relevance, lambda pairs: [similar for _ in pairs])


def chosen_of(asked: Sequence[AskedPassages], likely: Mapping[str, float], join: Join = alone, **fits: float) -> Chosen:
    return choose_passages(Scripted({DECLINED: -9.0, **likely}), asked, measures_of(fits), join=join)
