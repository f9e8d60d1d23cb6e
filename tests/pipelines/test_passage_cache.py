"""The passage cache saves prefill up to its limit and does not change answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from antiphon.accel import LanguageModel
from antiphon.accel.text.messages import PromptInput
from antiphon.pipelines import Rag
from antiphon.pipelines.passage_selection import MAX_LINES, SCORED_TOKENS
from antiphon.retrieval import Retriever

QUESTION = "How many eggs does a queen lay?"


def test_cached_passages_are_not_prefilled_again(
    reader: LanguageModel, retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    # equal relevance, so that lines of all passages are scored
    monkeypatch.setattr(
        "antiphon.pipelines.request_plan.relevance_scorer", lambda question: lambda said: [0.0 for _ in said]
    )

    class RecordingModel(LanguageModel):
        """A model that counts the tokens that it computes to score lines, and those of the prompts."""

        def score_batch(self, prompts: Sequence[PromptInput], *arguments: Any, **options: Any) -> list[list[float]]:
            self.computed, self.whole = 0, sum(self.tokenize(prompt).count for prompt in prompts)
            with self.model.register_forward_pre_hook(self._count, with_kwargs=True):
                return super().score_batch(prompts, *arguments, **options)

        def _count(self, module: object, arguments: object, options: dict[str, Any]) -> None:
            self.computed += options["input_ids"].shape[1]

    model = RecordingModel(reader.model, reader.tokenizer, name="tiny-reader")
    rag = Rag(retriever, model, k=3, passage_cache_tokens=100_000)
    assert rag.passage_cache is not None
    for index, question in enumerate((QUESTION, QUESTION, "How long does honey keep?")):
        answer = rag.ask(question, max_new_tokens=8)
        added = answer.usage.response_prefix_tokens
        assert answer.steps.prefill_tokens <= 1 + added  # the prompt was prefilled when its lines were scored
        scored = 3 * (MAX_LINES + 1) * SCORED_TOKENS
        assert model.computed >= model.whole if index == 0 else model.computed < scored + 3 * 2 * len(question)
        assert answer.text == Rag(retriever, reader, k=3).ask(question, max_new_tokens=8).text
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
