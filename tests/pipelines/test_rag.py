"""Rag: passages in, a cited answer out, the same one whether it is drafted, streamed or asked for at once."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from antiphon.accel import LanguageModel
from antiphon.accel.drafting.draft import Tokens
from antiphon.accel.drafting.drafters.nothing import Nothing
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.pipelines import Prompt, Rag
from antiphon.retrieval import Passage, Retriever

QUESTION = "How many eggs does a queen lay?"


class Found:
    """A search whose result is known beforehand."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = list(passages)

    def search(self, question: str, k: int = 5) -> list[Passage]:
        """The first ``k`` of them."""
        return self.passages[:k]


def test_an_answer_comes_with_the_passages_it_was_given_and_what_it_cost(
    retriever: Retriever, tiny: LanguageModel
) -> None:
    answer = Rag(retriever, tiny, k=2).ask(QUESTION, max_new_tokens=20)
    assert answer.question == QUESTION
    assert answer.passages == tuple(retriever.search(QUESTION, 2))
    assert answer.usage.completion_tokens == answer.steps.tokens == 20
    assert answer.finish_reason == "length"


def test_the_pieces_of_a_stream_are_the_answer(retriever: Retriever, tiny: LanguageModel) -> None:
    rag = Rag(retriever, tiny, k=2)
    stream = rag.stream(QUESTION, max_new_tokens=30)
    assert len(stream.passages) == 2  # there before the first piece
    with pytest.raises(RuntimeError, match="has not ended"):
        _ = stream.answer
    assert "".join(stream) == stream.answer.text == rag.ask(QUESTION, max_new_tokens=30).text


def test_a_closed_stream_keeps_what_it_gave_out(retriever: Retriever, tiny: LanguageModel) -> None:
    with Rag(retriever, tiny).stream(QUESTION, max_new_tokens=200) as stream:
        first = next(stream)
    assert stream.answer.text == first
    assert stream.answer.finish_reason == "cancelled"
    assert list(stream) == []


def test_drafting_changes_no_word(retriever: Retriever, tiny: LanguageModel) -> None:
    rag = Rag(retriever, tiny)
    drafted = rag.ask(QUESTION, max_new_tokens=60)
    plain = rag.ask(QUESTION, max_new_tokens=60, drafter="nothing")
    assert drafted.text == plain.text
    assert plain.steps.tokens_per_step == 1


def test_generation_options_reach_the_model(retriever: Retriever, tiny: LanguageModel) -> None:
    rag = Rag(retriever, tiny)
    sampled = [rag.ask(QUESTION, max_new_tokens=30, temperature=1.5, seed=seed).text for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]
    whole = rag.ask(QUESTION, max_new_tokens=30).text
    assert rag.ask(QUESTION, max_new_tokens=30, stop=whole[4:7]).text == whole[: whole.index(whole[4:7])]
    with pytest.raises(TypeError, match="lenght"):
        rag.ask(QUESTION, lenght=3)


def test_the_passages_are_the_references_best_first(tiny: LanguageModel, passages: list[Passage]) -> None:
    heard: list[str] = []

    class Listening(Nothing):
        def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
            heard.extend(str(tiny.tokenizer.decode(list(reference))) for reference in references)

    Rag(Found(passages), tiny, k=2).ask(QUESTION, max_new_tokens=3, drafter=Listening)
    assert heard == [passages[0].text, passages[1].text]


def test_passages_that_do_not_fit_are_left_out_worst_first(passages: list[Passage]) -> None:
    small = LanguageModel(tiny_model(max_position_embeddings=512), byte_tokenizer(), name="small")
    answer = Rag(Found(passages * 3), small, k=9).ask(QUESTION, max_new_tokens=40)
    count = len(answer.passages)
    assert answer.passages == tuple((passages * 3)[:count])
    one_more = (passages * 3)[count]
    assert answer.usage.prompt_tokens + 40 <= 512 < answer.usage.prompt_tokens + 40 + len(f"\n\n[3] {one_more.text}")


def test_a_passage_too_long_for_the_window_is_a_clear_error(tiny: LanguageModel) -> None:
    rag = Rag(Found([Passage.at("long.txt", 0, "word " * 400)]), tiny)
    with pytest.raises(ValueError, match=r"best passage take \d+ tokens.*max_new_tokens=50.*'tiny' \(1024 tokens\)"):
        rag.ask(QUESTION, max_new_tokens=50)


def test_a_model_without_a_chat_template_is_asked_in_plain_text(passages: list[Passage]) -> None:
    base = LanguageModel(tiny_model(max_position_embeddings=1024), byte_tokenizer(chat=False), name="base")
    answer = Rag(Found(passages), base).ask(QUESTION, max_new_tokens=5)
    docs = "\n".join(passage.text for passage in passages)
    assert answer.usage.prompt_tokens == 1 + len(f"docs:\n{docs}\nquery: {QUESTION}\nanswer:")


def test_citations_point_into_the_sources(tiny: LanguageModel, passages: list[Passage]) -> None:
    said = Rag(Found(passages), tiny).ask(QUESTION, max_new_tokens=40).text
    quoted = Passage.at("said.txt", 1000, f"He said: {said}")
    rag = Rag(Found([passages[0], quoted]), tiny, prompt=lambda question, _: Prompt(question))
    answer = rag.ask(QUESTION, max_new_tokens=40)
    for citation in answer.citations:
        passage = answer.passages[citation.passage - 1]
        assert citation.source == passage.source
        assert passage.text[citation.source_start - passage.start :].startswith(citation.text)


def test_an_answer_can_be_written_as_json(retriever: Retriever, tiny: LanguageModel) -> None:
    answer = Rag(retriever, tiny).ask(QUESTION, max_new_tokens=10)
    written = json.loads(json.dumps(answer.as_dict()))
    assert written["text"] == answer.text
    assert written["steps"]["tokens"] == 10
    assert written["passages"][0]["source"] == "bees.txt"


def test_bad_input_is_refused_in_a_sentence(retriever: Retriever, tiny: LanguageModel) -> None:
    with pytest.raises(ValueError, match="k is 0; an answer needs at least 1 passage"):
        Rag(retriever, tiny, k=0)
    with pytest.raises(ValueError, match="question is empty"):
        Rag(retriever, tiny).ask(" ")
    with pytest.raises(ValueError, match="found no passage"):
        Rag(Found([]), tiny).ask(QUESTION)
    with pytest.raises(ValueError, match="max_new_tokens is 0"):
        Rag(retriever, tiny).ask(QUESTION, max_new_tokens=0)
