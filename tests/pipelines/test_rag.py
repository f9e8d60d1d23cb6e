"""Rag: answers with their passages and costs, and what fits into the prompt."""

from collections.abc import Sequence

import pytest

from antiphon.accel import LanguageModel
from antiphon.pipelines import Rag
from antiphon.retrieval import Passage, Retriever
from tests.tiny import byte_tokenizer, tiny_model

QUESTION = "How many eggs does a queen lay?"


class FixedSearcher:
    """A searcher with a fixed result."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = list(passages)

    def search(self, question: str, k: int = 5) -> list[Passage]:
        """Return the first ``k`` passages."""
        return self.passages[:k]


def test_an_answer_has_its_passages_and_its_cost(retriever: Retriever, tiny: LanguageModel) -> None:
    answer = Rag(retriever, tiny, k=2).ask(QUESTION, max_new_tokens=20)
    assert answer.question == QUESTION
    assert answer.passages == tuple(retriever.search(QUESTION, 2))
    assert answer.usage.completion_tokens == answer.steps.tokens == 20
    assert answer.finish_reason == "length"


def test_generation_options_reach_the_model(retriever: Retriever, tiny: LanguageModel) -> None:
    rag = Rag(retriever, tiny)
    sampled = [rag.ask(QUESTION, max_new_tokens=30, temperature=1.5, seed=seed).text for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]
    whole = rag.ask(QUESTION, max_new_tokens=30).text
    assert rag.ask(QUESTION, max_new_tokens=30, stop=whole[4:7]).text == whole[: whole.index(whole[4:7])]
    with pytest.raises(TypeError, match="lenght"):
        rag.ask(QUESTION, lenght=3)


def test_passages_that_do_not_fit_are_left_out_starting_with_the_worst(passages: list[Passage]) -> None:
    small = LanguageModel(tiny_model(max_position_embeddings=512), byte_tokenizer(), name="small")
    answer = Rag(FixedSearcher(passages * 3), small, k=9).ask(QUESTION, max_new_tokens=40)
    count = len(answer.passages)
    assert answer.passages == tuple((passages * 3)[:count])
    one_more = (passages * 3)[count]
    assert answer.usage.prompt_tokens + 40 <= 512 < answer.usage.prompt_tokens + 40 + len(f"\n\n[3] {one_more.text}")


def test_a_passage_that_exceeds_the_context_window_is_an_error(tiny: LanguageModel) -> None:
    rag = Rag(FixedSearcher([Passage.at("long.txt", 0, "word " * 400)]), tiny)
    with pytest.raises(ValueError, match=r"best passage take \d+ tokens.*max_new_tokens=50.*'tiny' \(1024 tokens\)"):
        rag.ask(QUESTION, max_new_tokens=50)


def test_invalid_arguments_are_refused_with_an_explanation(retriever: Retriever, tiny: LanguageModel) -> None:
    with pytest.raises(ValueError, match="k is 0; an answer needs at least 1 passage"):
        Rag(retriever, tiny, k=0)
    with pytest.raises(ValueError, match="question is empty"):
        Rag(retriever, tiny).ask(" ")
    with pytest.raises(ValueError, match="found no passage"):
        Rag(FixedSearcher([]), tiny).ask(QUESTION)
    with pytest.raises(ValueError, match="max_new_tokens is 0"):
        Rag(retriever, tiny).ask(QUESTION, max_new_tokens=0)


def test_cached_passages_are_not_prefilled_again(reader: LanguageModel, retriever: Retriever) -> None:
    rag = Rag(retriever, reader, k=3, passage_cache_tokens=100_000)
    assert rag.passage_cache is not None
    prefilled = []
    for question in (QUESTION, QUESTION):
        answer = rag.ask(question, max_new_tokens=8)
        prefilled.append(answer.steps.prefill_tokens)
        assert answer.text == Rag(retriever, reader, k=3).ask(question, max_new_tokens=8).text
    assert prefilled[0] >= 100 > 10 > prefilled[1]
    assert 0 < rag.passage_cache.size < 100_000
    rag.passage_cache.clear()
    assert rag.passage_cache.size == 0


def test_the_size_of_the_cache_is_limited(reader: LanguageModel, retriever: Retriever) -> None:
    rag = Rag(retriever, reader, k=1, passage_cache_tokens=400)
    assert rag.passage_cache is not None
    for question in ("honey", "queen", "colonies", "honey"):
        used = rag.ask(question, max_new_tokens=4).usage.total_tokens
        assert rag.passage_cache.size <= 400 + used
    with pytest.raises(ValueError, match="-1"):
        Rag(retriever, reader, passage_cache_tokens=-1)
