"""Retrieval-augmented generation: a question, the passages that answer it, and a language model that says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from antiphon.accel import LanguageModel
from antiphon.accel.messages import encode
from antiphon.pipelines.answer import Answer, AnswerStream
from antiphon.pipelines.prompt import Prompt, PromptFormat, prompt_format
from antiphon.pipelines.references import passage_references
from antiphon.retrieval import Passage

MAX_NEW_TOKENS = 256


class Searcher(Protocol):
    """Whoever finds passages for a question: `antiphon.retrieval.Retriever`, or anything with its ``search``."""

    def search(self, question: str, k: int = 5) -> list[Passage]:
        """The ``k`` best passages, best first."""


class Rag:
    """Answers questions from documents: what the search finds is the prompt's evidence and the drafter's references.

    ``k`` passages are put into the prompt; where they do not fit the model's context window beside the answer's
    ``max_new_tokens``, the last ones are left out. ``prompt`` makes the prompt; by default its form follows the
    model: the one that its configuration names (``prompt_format``), else messages where its tokenizer has a chat
    template, plain text where it has none.
    """

    def __init__(
        self,
        retriever: Searcher,
        language_model: LanguageModel,
        *,
        k: int = 5,
        prompt: PromptFormat | None = None,
    ) -> None:
        if k < 1:
            raise ValueError(f"k is {k}; an answer needs at least 1 passage.")
        self.retriever = retriever
        self.language_model = language_model
        self.k = k
        self._prompt = prompt or prompt_format(language_model)

    def ask(self, question: str, *, k: int | None = None, **generation: Any) -> Answer:
        """The whole answer; see `stream`, whose pieces it joins."""
        with self.stream(question, k=k, **generation) as pieces:
            for _ in pieces:
                pass
        return pieces.answer

    def stream(self, question: str, *, k: int | None = None, **generation: Any) -> AnswerStream:
        """The answer piece by piece; its passages are known at once.

        ``generation`` goes to `LanguageModel.stream`: ``max_new_tokens``, ``temperature``, ``stop``, ``seed``,
        ``drafter``, ``rows`` and so on.

        Raises:
            ValueError: nothing was found, not even one passage fits the context window, or an option is out of range.
            TypeError: there is no such option.
        """
        found = self.retriever.search(question, self.k if k is None else k)
        if not found:
            raise ValueError(f"The search found no passage for {question!r}; an answer needs at least one.")
        generation.setdefault("max_new_tokens", MAX_NEW_TOKENS)
        passages, prompt = self._fit(question, tuple(found), generation["max_new_tokens"])
        generation["stop"] = (*_as_texts(generation.get("stop", ())), *prompt.stop)
        references = prompt.answers or passage_references(passages)
        stream = self.language_model.stream(prompt.content, references=references, **generation)
        return AnswerStream(question, passages, prompt, stream)

    def _fit(self, question: str, found: tuple[Passage, ...], answer: int) -> tuple[tuple[Passage, ...], Prompt]:
        """As many of the best passages as leave room for ``answer`` tokens, and their prompt."""
        window = self.language_model.context_window
        for count in range(len(found), 0, -1):
            passages = found[:count]
            prompt = self._prompt(question, passages)
            if window is None:
                return passages, prompt
            needed = len(encode(prompt.content, self.language_model.tokenizer))
            if needed + answer <= window:
                return passages, prompt
        raise ValueError(
            f"The question and its best passage take {needed} tokens, which with max_new_tokens={answer} exceeds the "
            f"context window of {self.language_model.name!r} ({window} tokens); ask for a shorter answer, or index the "
            "documents in shorter passages."
        )


def _as_texts(stop: str | Sequence[str]) -> Sequence[str]:
    return (stop,) if isinstance(stop, str) else stop
