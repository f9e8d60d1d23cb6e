"""What the reader has read of passages is kept, as far as is wanted, and changes no answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from antiphon.accel import LanguageModel, Stream
from antiphon.accel.text.messages import PromptInput
from antiphon.pipelines import Rag
from antiphon.retrieval import Retriever

QUESTION = "How many eggs does a queen lay?"


def test_passages_that_were_read_before_are_not_read_again(
    reader: LanguageModel, retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    # lines of all passages are weighed, whatever was asked
    monkeypatch.setattr("antiphon.pipelines.rag.relevance_to", lambda question: lambda said: [0.0 for _ in said])

    class Noting(LanguageModel):
        def stream_batch(self, prompts: Sequence[PromptInput], **parameters: Any) -> list[Stream]:
            self.streams: list[Stream] = super().stream_batch(prompts, **parameters)
            return self.streams

    model = Noting(reader.model, reader.tokenizer, name="tiny-reader")
    rag = Rag(retriever, model, k=3, remembered_tokens=100_000)
    assert rag.memory is not None
    for place, question in enumerate((QUESTION, QUESTION, "How long does honey keep?")):
        answer = rag.ask(question, max_new_tokens=8)
        read = [stream.completion.steps.prefill_tokens for stream in model.streams]
        whole = [stream.completion.usage.prompt_tokens for stream in model.streams]
        assert answer.steps.prefill_tokens < 2 * len(question)  # it was read when its lines were weighed
        assert read == whole if place == 0 else max(read) < 2 * len(question)
        assert answer.text == Rag(retriever, reader, k=3).ask(question, max_new_tokens=8).text
    assert 0 < rag.memory.size < 100_000
    rag.memory.clear()
    assert rag.memory.size == 0


def test_what_is_remembered_is_bounded(reader: LanguageModel, retriever: Retriever) -> None:
    rag = Rag(retriever, reader, k=1, remembered_tokens=400)
    assert rag.memory is not None
    for question in ("honey", "queen", "colonies", "honey"):
        used = rag.ask(question, max_new_tokens=4).usage.total_tokens
        assert rag.memory.size <= 400 + used
    with pytest.raises(ValueError, match="-1"):
        Rag(retriever, reader, remembered_tokens=-1)
