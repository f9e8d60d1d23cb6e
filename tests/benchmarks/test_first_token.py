"""Time to the first token: each question is timed with new and with cached passages; figures are medians."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.accel import LanguageModel
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.retrieval import Passage
from benchmarks.first_token import FirstToken, first_token_figures, measure_first_tokens

pytestmark = pytest.mark.slow


class Bees:
    """A searcher that always finds the same two passages."""

    def search(self, question: str, k: int = 5) -> list[Passage]:
        return [Passage.at("a.md", 0, "Wax melts at sixty degrees."), Passage.at("b.md", 0, "Honey keeps.")][:k]


@pytest.mark.exhaustive
def test_each_question_is_timed_with_new_and_cached_passages() -> None:
    model: Any = tiny_model(max_position_embeddings=2048)
    model.config.prompt_format = "reader"
    tiny_reader = LanguageModel(model, byte_tokenizer(), name="tiny-reader")
    measured = measure_first_tokens(["Does wax melt?", "Does honey keep?"], Bees(), tiny_reader, 2, max_new_tokens=4)
    assert [one.question for one in measured] == ["Does wax melt?", "Does honey keep?"]
    assert all(one.new > 0 and one.cached > 0 for one in measured)


def test_the_figures_are_medians_in_milliseconds() -> None:
    measured = [FirstToken("a", 0.2, 0.1), FirstToken("b", 0.4, 0.1), FirstToken("c", 9.0, 0.3)]
    assert first_token_figures(measured) == {"unread_ms": 400.0, "read_ms": 100.0, "sooner": pytest.approx(4.0)}
