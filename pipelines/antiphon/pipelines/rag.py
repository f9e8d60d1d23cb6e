"""Retrieval-augmented generation: a question, the passages that answer it, and a language model that says so."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from antiphon.accel import Completion, PrefixCache, TextModel
from antiphon.accel.text.messages import CountedPrompt, TokenizedPrompt
from antiphon.pipelines.answer import Answer, AnswerStream
from antiphon.pipelines.each import AskedPassages, Chosen, Measures, WeighingModel, asks_each, choose_passages
from antiphon.pipelines.passage_memory import PassageMemory
from antiphon.pipelines.prompt import Prompt, PromptFormat, check_text, prompt_format
from antiphon.pipelines.references import answer_references, passage_references
from antiphon.pipelines.relevance import relevance_to, shipped_relevance
from antiphon.pipelines.sessions import SessionStore
from antiphon.pipelines.similarity import similarity_to
from antiphon.retrieval import Passage

MAX_NEW_TOKENS = 256


class Searcher(Protocol):
    """Finds passages for a question: `antiphon.retrieval.Retriever`, or anything with its ``search``."""

    def search(self, question: str, k: int = 5) -> list[Passage]:
        """The ``k`` best passages, best first."""


class Rag:
    """Answers questions from documents: what the search finds is the prompt's evidence and the drafter's references.

    ``k`` passages are found. The reader is asked about each by itself: its answer begins with the line that answers
    best and that it finds likeliest, and goes on with a second one that is nearly as good, or is a refusal where none
    is enough. The passages of these lines are then the first of the answer's, and their prompt the one that is counted,
    without the forward that weighed lines. Any other model has them all in one prompt; where they do not fit the
    context window beside the answer's ``max_new_tokens``, the last ones are left out. ``prompt`` makes the prompt, of
    all passages at once; by default its form follows the model: the one that its configuration names
    (``prompt_format``), else messages where its tokenizer has a chat template, plain text where it has none.

    With ``sessions`` every answer is kept, and the answers to similar questions become references as well: the same
    words (in half precision but for ties), in fewer steps.

    With ``remembered_tokens`` what the reader has read of passages is kept, so many tokens of it (see `PassageMemory`):
    the next question that finds them is answered sooner.

    Raises:
        ValueError: ``k`` or ``remembered_tokens`` is out of range, or the model's form of prompt is not known.
        ImportError: the model is a reader, and the package of the encoder that weighs lines is not installed.
    """

    def __init__(
        self,
        retriever: Searcher,
        language_model: TextModel,
        *,
        k: int = 5,
        prompt: PromptFormat | None = None,
        sessions: SessionStore | None = None,
        remembered_tokens: int = 0,
    ) -> None:
        if k < 1:
            raise ValueError(f"k is {k}; an answer needs at least 1 passage.")
        self.retriever = retriever
        self.language_model = language_model
        self.k = k
        self._own_prompt = prompt
        self.prompt = prompt or prompt_format(language_model)
        self.sessions = sessions
        self.memory = PassageMemory(remembered_tokens) if remembered_tokens else None
        if prompt is None and asks_each(language_model):
            shipped_relevance()  # loaded now, so that the first question does not wait for it

    def ask(self, question: str, *, k: int | None = None, sessions: bool = True, **generation: Any) -> Answer:
        """The whole answer; see `stream`, whose pieces it joins."""
        return self.stream(question, k=k, sessions=sessions, **generation).to_end().answer

    def stream(self, question: str, *, k: int | None = None, sessions: bool = True, **generation: Any) -> AnswerStream:
        """The answer piece by piece; its passages are known at once.

        With ``sessions=False`` the store of sessions is neither read nor written. ``generation`` goes to
        `LanguageModel.stream`: ``max_new_tokens``, ``temperature``, ``stop``, ``seed``, ``drafter`` and so on.

        Raises:
            ValueError: nothing was found, not even one passage fits the context window, or an option is out of range.
            TypeError: there is no such option.
        """
        found = self.find(question, k)
        generation.setdefault("max_new_tokens", MAX_NEW_TOKENS)
        if self._own_prompt is None and asks_each(self.language_model):
            return self._each(self.language_model, question, found, sessions, generation)
        fitted = fit(partial(self.prompt, question), found, self.language_model, generation["max_new_tokens"])
        return self.begin(question, *fitted, sessions=sessions, **generation)

    def find(self, question: str, k: int | None = None) -> tuple[Passage, ...]:
        """The passages for a question, best first.

        Raises:
            ValueError: nothing was found, or the question is no text.
        """
        check_text(question)
        found = self.retriever.search(question, self.k if k is None else k)
        if not found:
            raise ValueError(f"The search found no passage for {question!r}; an answer needs at least one.")
        return tuple(found)

    def _each(
        self,
        model: WeighingModel,
        question: str,
        found: tuple[Passage, ...],
        sessions: bool,
        generation: dict[str, Any],
    ) -> AnswerStream:
        """The answer from the passages that were chosen, which are then the first of the passages."""
        store = self.sessions if sessions else None
        chosen = self._choose(model, question, found, store, **generation)
        then = [partial(_keep, store, question)] if store is not None else []
        pieces = chosen.answer(model, **chosen.options)
        return AnswerStream(question, _first(chosen.asked.passages, found), chosen.asked.prompt, pieces, then)

    def _choose(
        self,
        model: WeighingModel,
        question: str,
        found: tuple[Passage, ...],
        store: SessionStore | None = None,
        **generation: Any,
    ) -> Chosen:
        """The passages that answer, and how their answer begins; see `choose_passages`."""
        earlier = _earlier(store, question) if store is not None else []
        ask = partial(self._asked, question, earlier, generation["max_new_tokens"])
        asked = [ask((passage,)) for passage in found]
        memory = self.memory
        prefixes = [memory.prefix_of(passage) for passage in found] if memory is not None else []

        def join(passages: Sequence[Passage]) -> AskedPassages | None:
            together = ask(tuple(passages))
            return together if len(together.passages) == len(passages) else None

        measures = Measures(relevance_to(question), similarity_to(question, self.retriever))
        return choose_passages(model, asked, measures, prefixes, join=join, **generation)

    def _asked(
        self, question: str, earlier: Sequence[str], max_new_tokens: int, passages: tuple[Passage, ...]
    ) -> AskedPassages:
        """As many of these passages as fit, with the prompt that asks them."""
        asked, prompt, tokenized = fit(partial(self.prompt, question), passages, self.language_model, max_new_tokens)
        more = answer_references(earlier, tokenized, self.language_model.tokenizer)
        return AskedPassages(asked, prompt, tokenized, (*prompt.answers, *more))

    def begin(
        self,
        question: str,
        passages: tuple[Passage, ...],
        prompt: Prompt,
        tokenized: TokenizedPrompt | CountedPrompt,
        *,
        references: Sequence[str] = (),
        sessions: bool = True,
        kept_as: str | None = None,
        prefix: PrefixCache | None = None,
        then: Sequence[Callable[[Completion], None]] = (),
        **generation: Any,
    ) -> AnswerStream:
        """The answer to a prompt that was made of these passages, and tokenized.

        More ``references`` come after the passages. ``kept_as`` is the question that sessions are searched and kept by,
        where it is not the one that was asked.
        ``prefix`` is that of `LanguageModel.stream`, ``then`` that of `AnswerStream`.
        """
        generation["stop"] = (*_as_texts(generation.get("stop", ())), *prompt.stop)
        sources = [*(prompt.answers or passage_references(passages)), *references]
        if sessions and self.sessions is not None:
            key = kept_as or question
            answers = _earlier(self.sessions, key)
            sources += answer_references(answers, tokenized, self.language_model.tokenizer)
            then = (*then, partial(_keep, self.sessions, key))
        stream = self.language_model.stream(tokenized, references=sources, prefix=prefix, **generation)
        return AnswerStream(question, passages, prompt, stream, then)


def fit(
    make: Callable[[Sequence[Passage]], Prompt],
    found: tuple[Passage, ...],
    language_model: TextModel,
    max_new_tokens: int,
    known: TokenizedPrompt | CountedPrompt | None = None,
) -> tuple[tuple[Passage, ...], Prompt, TokenizedPrompt | CountedPrompt]:
    """As many of the best passages as leave room for ``max_new_tokens``, and the prompt that ``make`` makes of them.

    The prompt is tokenized for it, once; ``known`` is that of all passages, where somebody has done so before.

    Raises:
        ValueError: not even one fits.
    """
    window = language_model.context_window
    for count in range(len(found), 0, -1):
        passages = found[:count]
        prompt = make(passages)
        tokenized = (known if count == len(found) else None) or language_model.tokenize(prompt.content)
        needed = tokenized.count
        if window is None or needed + max_new_tokens <= window:
            return passages, prompt, tokenized
    raise ValueError(
        f"The question and its best passage take {needed} tokens, which with max_new_tokens={max_new_tokens} exceeds "
        f"the context window of {language_model.name!r} ({window} tokens); ask for a shorter answer, or index the "
        "documents in shorter passages."
    )


def chosen_first(
    language_model: TextModel, question: str, passages: Sequence[Passage], **generation: Any
) -> tuple[tuple[Passage, ...], int, Mapping[str, Any]]:
    """The same passages, first those that a reader is to answer from, how many these are, and what options it needs.

    Any other model answers from all of them, as they were.
    """
    found = tuple(passages)
    if not found:
        return found, 0, {}
    rag = Rag(_Found(found), language_model, k=len(found))
    if not asks_each(language_model):
        return found, len(found), {}
    chosen = rag._choose(language_model, question, found, **generation)
    added = {name: value for name, value in chosen.options.items() if name not in generation}
    return _first(chosen.asked.passages, found), len(chosen.asked.passages), added


def _first(chosen: Sequence[Passage], passages: Sequence[Passage]) -> tuple[Passage, ...]:
    return (*chosen, *(passage for passage in passages if not any(passage is one for one in chosen)))


@dataclass(frozen=True, slots=True)
class _Found:
    """A search that has been made."""

    passages: Sequence[Passage]

    def search(self, question: str, k: int = 5) -> list[Passage]:
        return list(self.passages[:k])


def _earlier(sessions: SessionStore, question: str) -> list[str]:
    """The answers to similar questions; none, where the store cannot be read: a draft is never needed."""
    try:
        return [session.answer for session in sessions.similar(question)]
    except (sqlite3.Error, OSError) as error:
        warnings.warn(f"The sessions were not searched: {error}", stacklevel=2)
        return []


def _keep(sessions: SessionStore, question: str, completion: Completion) -> None:
    """Keep an answer that ended by itself or was long enough. An answer is not lost because it cannot be kept."""
    if completion.finish_reason == "cancelled" or not completion.text.strip():
        return
    try:
        sessions.add(question, completion.text)
    except (sqlite3.Error, OSError) as error:
        warnings.warn(f"The answer was not kept as a session: {error}", stacklevel=2)


def _as_texts(stop: str | Sequence[str]) -> Sequence[str]:
    return (stop,) if isinstance(stop, str) else stop
