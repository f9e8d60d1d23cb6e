"""The passage cache saves prefill up to its limit and does not change answers."""

from __future__ import annotations

import pytest

from antiphon.accel import LanguageModel
from antiphon.pipelines import Rag
from antiphon.retrieval import Retriever

QUESTION = "How many eggs does a queen lay?"


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
