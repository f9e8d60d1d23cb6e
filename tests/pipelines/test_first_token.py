"""The first piece of an answer: passages that were read before are not read again, and the figures are medians."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.accel import LanguageModel
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.pipelines.benchmark.first_token import FirstPiece, first_piece_figures, measure_first_pieces
from antiphon.retrieval import Passage


class Bees:
    """Finds the same two passages always."""

    def search(self, question: str, k: int = 5) -> list[Passage]:
        return [Passage.at("a.md", 0, "Wax melts at sixty degrees."), Passage.at("b.md", 0, "Honey keeps.")][:k]


def test_each_question_is_timed_twice() -> None:
    model: Any = tiny_model(max_position_embeddings=2048)
    model.config.prompt_format = "reader"
    tiny_reader = LanguageModel(model, byte_tokenizer(), name="tiny-reader")
    measured = measure_first_pieces(["Does wax melt?", "Does honey keep?"], Bees(), tiny_reader, 2, max_new_tokens=4)
    assert [one.question for one in measured] == ["Does wax melt?", "Does honey keep?"]
    assert all(one.unread > 0 and one.read > 0 for one in measured)


def test_the_figures_are_medians_in_milliseconds() -> None:
    measured = [FirstPiece("a", 0.2, 0.1), FirstPiece("b", 0.4, 0.1), FirstPiece("c", 9.0, 0.3)]
    assert first_piece_figures(measured) == {"unread_ms": 400.0, "read_ms": 100.0, "sooner": pytest.approx(4.0)}
