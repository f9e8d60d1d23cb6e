"""Each passage by itself: the likeliest answer that is no refusal is the answer, and its passage comes first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from antiphon.accel import Completion, LanguageModel, Summary, Usage
from antiphon.pipelines.each import Candidate, Said, ask_each, best
from antiphon.pipelines.prompt import DECLINED, Prompt, reader_prompt
from antiphon.pipelines.rag import Rag
from antiphon.retrieval import Passage

QUESTION = "How many eggs does a queen lay?"


class Found:
    """A search whose result is known beforehand."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = list(passages)

    def search(self, question: str, k: int = 5) -> list[Passage]:
        """The first ``k`` of them."""
        return self.passages[:k]


def _said(text: str) -> Completion:
    return Completion(text, "stop", Usage(1, 1), Summary(steps=1, tokens=1, seconds=0.0), (1,))


def _candidates(passages: Sequence[Passage], *said: tuple[str, float]) -> list[Candidate]:
    return [
        Candidate(passage, Prompt("?"), _said(text), likely)
        for passage, (text, likely) in zip(passages, said, strict=False)
    ]


def test_the_likeliest_answer_wins_and_a_refusal_only_where_there_is_nothing_else(passages: list[Passage]) -> None:
    found = _candidates(passages, (DECLINED, 0.0), ("[1] Wax.", -3.0), ("[1] Honey.", -1.0))
    assert best(found).completion.text == "[1] Honey."
    assert best(found[:1]).is_refusal


def test_every_passage_is_asked_alone_and_says_what_it_says_alone(tiny: LanguageModel, passages: list[Passage]) -> None:
    asked = [(passage, reader_prompt(QUESTION, [passage])) for passage in passages[:3]]
    found = ask_each(tiny, asked, lambda passage, prompt: prompt.answers, max_new_tokens=12)
    for (passage, prompt), one in zip(asked, found, strict=True):
        assert one.passage is passage
        assert one.completion.text == tiny.generate(prompt.content, max_new_tokens=12).text
        assert one.log_probability == pytest.approx(tiny.log_probability(prompt.content, one.completion))


def test_the_reader_reads_passages_one_by_one_and_puts_the_one_that_answers_first(
    tiny: LanguageModel, passages: list[Passage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny.model.config, "prompt_format", "reader", raising=False)
    rag = Rag(Found(passages), tiny, k=3)
    answer = rag.ask(QUESTION, max_new_tokens=12)
    asked = [(passage, reader_prompt(QUESTION, [passage])) for passage in passages[:3]]
    chosen = best(ask_each(tiny, asked, lambda passage, prompt: (), max_new_tokens=12))
    assert answer.text == chosen.completion.text
    assert answer.passages[0] == chosen.passage
    assert set(answer.passages) == set(passages[:3])
    assert "".join(rag.stream(QUESTION, max_new_tokens=12)) == answer.text


def test_a_prompt_of_ones_own_has_all_passages_at_once(tiny: LanguageModel, passages: list[Passage]) -> None:
    assert not Rag(Found(passages), tiny, prompt=reader_prompt).is_each_asked


def test_what_was_said_is_given_out_piece_by_piece_and_whole(tiny: LanguageModel) -> None:
    completion = tiny.generate("Bees", references=["Bees dance."], max_new_tokens=20)
    pieces = list(Said(completion))
    assert "".join(pieces) == completion.text
    assert len(pieces) > 1
    closed = Said(completion)
    next(closed)
    closed.close()
    assert list(closed) == []
    assert closed.completion is completion
