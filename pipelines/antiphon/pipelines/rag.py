"""Retrieval-augmented generation: `Rag.stream` retrieves passages, builds the prompt, generates and cites."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from antiphon.accel import Completion, PrefixCache, TextModel
from antiphon.accel.text.messages import CountedPrompt, PromptInput, TokenizedPrompt
from antiphon.pipelines.answer import Answer, AnswerStream
from antiphon.pipelines.citations import cite
from antiphon.pipelines.passage_cache import PassageCache
from antiphon.pipelines.passage_selection import (
    BatchStreamingModel,
    LineScorers,
    PassagePrompt,
    SelectedPrompt,
    select_passages,
    selects_passages,
)
from antiphon.pipelines.prompt import Prompt, PromptFormat, check_text, prompt_format
from antiphon.pipelines.references import answer_references, passage_references
from antiphon.pipelines.relevance import bundled_relevance, relevance_scorer
from antiphon.pipelines.sessions import SessionStore
from antiphon.pipelines.similarity import similarity_scorer
from antiphon.retrieval import Passage

MAX_NEW_TOKENS = 256

FittedPrompt = tuple[tuple[Passage, ...], Prompt, TokenizedPrompt | CountedPrompt]
"""The passages that fit the context window, their prompt, and its tokens."""


class Searcher(Protocol):
    """Retrieves passages for a question: `antiphon.retrieval.Retriever`, or any object with this ``search`` method."""

    def search(self, question: str, k: int = 5) -> list[Passage]:
        """Return the ``k`` best passages, best first."""


@dataclass(frozen=True, slots=True)
class TurnContext:
    """Additions of a conversation to the retrieval, prompt and drafts of a question.

    Attributes:
        query: the text that passages and sessions are searched for.
        build_prompt: makes the prompt of the retrieved passages and the earlier turns.
        references: further texts to draft from.
        prefix: the KV cache of the earlier turns.
        on_end: called with the answer when it ends.
    """

    query: str
    build_prompt: Callable[[tuple[Passage, ...]], FittedPrompt]
    references: Sequence[str]
    prefix: PrefixCache
    on_end: Callable[[Answer], None]


class Rag:
    """Answers questions from documents; the retrieved passages are in the prompt and are drafted from.

    For the bundled extractive model passages are selected (see `passage_selection`): its answer starts with the best
    lines, or is a refusal. The passages of these lines come first in the answer, and token counts are those of their
    prompt. Any other model gets one prompt of all passages that fit its context window together with
    ``max_new_tokens``.

    Args:
        retriever: retrieves passages.
        language_model: generates the answer.
        k: passages per question.
        prompt: makes the prompt of a question and its passages; by default the format that the model's configuration
            names (``prompt_format``), else messages if its tokenizer has a chat template, else plain text.
        sessions: stores every answer; answers to similar questions become references, too. The output stays the same
            (in half precision except at ties) and takes fewer steps.
        passage_cache_tokens: number of tokens of recently used passages whose KV cache is kept, so that later questions
            about them need less prefill (see `PassageCache`); 0: none.

    Raises:
        ValueError: ``k`` or ``passage_cache_tokens`` is out of range, or the model's prompt format is unknown.
        ImportError: passages are selected for this model, and the package of the sentence encoder is not installed.
    """

    def __init__(
        self,
        retriever: Searcher,
        language_model: TextModel,
        *,
        k: int = 5,
        prompt: PromptFormat | None = None,
        sessions: SessionStore | None = None,
        passage_cache_tokens: int = 0,
    ) -> None:
        if k < 1:
            raise ValueError(f"k is {k}; an answer needs at least 1 passage.")
        self.retriever = retriever
        self.language_model = language_model
        self.k = k
        self.prompt = prompt or prompt_format(language_model)
        self.sessions = sessions
        self.passage_cache = PassageCache(passage_cache_tokens) if passage_cache_tokens else None
        self._has_custom_prompt = prompt is not None
        if prompt is None and selects_passages(language_model):
            bundled_relevance()  # loaded now, so that the first question does not wait for it

    def ask(self, question: str, *, k: int | None = None, sessions: bool = True, **generation: Any) -> Answer:
        """Return the complete answer to a question. See `stream` for errors.

        Args:
            question: the question.
            k: passages to retrieve; by default those of the constructor.
            sessions: read and write the store of sessions, if there is one.
            **generation: options of `LanguageModel.stream`: ``max_new_tokens`` (256), ``temperature``, ``stop``, ...
        """
        return self.stream(question, k=k, sessions=sessions, **generation).to_end().answer

    def stream(
        self,
        question: str,
        *,
        k: int | None = None,
        sessions: bool = True,
        context: TurnContext | None = None,
        **generation: Any,
    ) -> AnswerStream:
        """Return the answer to a question as a stream; its passages are known at once.

        Args:
            question: the question.
            k: passages to retrieve; by default those of the constructor.
            sessions: read and write the store of sessions, if there is one.
            context: the conversation that the question belongs to.
            **generation: options of `LanguageModel.stream`: ``max_new_tokens`` (256), ``temperature``, ``stop``, ...

        Raises:
            ValueError: nothing was found, not even one passage fits the context window, or an option is out of range.
            TypeError: there is no such option.
        """
        model, query = self.language_model, context.query if context else question
        store = self.sessions if sessions else None
        max_new_tokens = generation.setdefault("max_new_tokens", MAX_NEW_TOKENS)
        # 1. Retrieve the k passages that match the query best.
        passages = found = self.retrieve(query, k)
        # 2. Build the prompt: of the selected passages, or of as many as fit the context window.
        prefix = context.prefix if context else None
        tokenized: PromptInput
        if context is None and not self._has_custom_prompt and selects_passages(model):
            selected = self._select(model, question, found, **generation)
            prompt, tokenized = selected.passage_prompt.prompt, selected.passage_prompt.tokenized
            passages = _first(selected.passage_prompt.passages, found)
            prefix, generation = selected.prefix, dict(selected.options)
        else:
            build = context.build_prompt if context else partial(self._build_prompt, question, max_new_tokens)
            passages, prompt, tokenized = build(found)
        # 3. Generate, drafting from the passages, the earlier turns and the answers to similar questions.
        references = [*(prompt.answers or passage_references(passages)), *(context.references if context else ())]
        references += answer_references(_similar_answers(store, query), tokenized, model.tokenizer)
        generation["stop"] = (*_as_tuple(generation.get("stop", ())), *prompt.stop)
        stream = model.stream(tokenized, references=references, prefix=prefix, **generation)

        # 4. Cite, when the text has ended: the spans that are quoted verbatim from a passage.
        def to_answer(completion: Completion) -> Answer:
            return Answer.from_completion(question, completion, passages, cite(completion.text, passages))

        on_end: list[Callable[[Answer], None]] = [context.on_end] if context else []
        if store is not None:
            on_end.append(partial(_keep, store, query))
        return AnswerStream(question, passages, prompt, stream, to_answer, on_end)

    def retrieve(self, question: str, k: int | None = None) -> tuple[Passage, ...]:
        """Return the passages for a question, best first.

        Args:
            question: the question.
            k: the number of passages; by default that of the constructor.

        Raises:
            ValueError: nothing was found, or the question is not valid text.
        """
        check_text(question)
        found = self.retriever.search(question, self.k if k is None else k)
        if not found:
            raise ValueError(f"The search found no passage for {question!r}; an answer needs at least one.")
        return tuple(found)

    def _build_prompt(self, question: str, max_new_tokens: int, passages: tuple[Passage, ...]) -> FittedPrompt:
        return fit_passages(partial(self.prompt, question), passages, self.language_model, max_new_tokens)

    def _select(
        self, model: BatchStreamingModel, question: str, found: tuple[Passage, ...], **generation: Any
    ) -> SelectedPrompt:
        """Select the passages and the lines that the answer starts with; see `select_passages`."""
        build = partial(self._build_prompt, question, generation["max_new_tokens"])
        prompts = [PassagePrompt(*build((passage,))) for passage in found]
        cache = self.passage_cache
        prefixes = [cache.prefix_of(passage) for passage in found] if cache is not None else []

        def join(passages: Sequence[Passage]) -> PassagePrompt | None:
            joined = PassagePrompt(*build(tuple(passages)))
            return joined if len(joined.passages) == len(passages) else None

        scorers = LineScorers(relevance_scorer(question), similarity_scorer(question, self.retriever))
        return select_passages(model, prompts, scorers, prefixes, join=join, **generation)


def fit_passages(
    make_prompt: Callable[[Sequence[Passage]], Prompt],
    found: tuple[Passage, ...],
    language_model: TextModel,
    max_new_tokens: int,
    tokenized_all: TokenizedPrompt | CountedPrompt | None = None,
) -> FittedPrompt:
    """Return as many of the best passages as fit the context window, with their prompt.

    Args:
        make_prompt: makes the prompt of passages.
        found: the retrieved passages, best first.
        language_model: its context window is the limit.
        max_new_tokens: tokens to leave for the answer.
        tokenized_all: the tokenized prompt of all passages, if it is known.

    Raises:
        ValueError: not even one passage fits.
    """
    window = language_model.context_window
    for count in range(len(found), 0, -1):
        passages = found[:count]
        prompt = make_prompt(passages)
        tokenized = (tokenized_all if count == len(found) else None) or language_model.tokenize(prompt.content)
        needed = tokenized.count
        if window is None or needed + max_new_tokens <= window:
            return passages, prompt, tokenized
    raise ValueError(
        f"The question and its best passage take {needed} tokens, which with max_new_tokens={max_new_tokens} exceeds "
        f"the context window of {language_model.name!r} ({window} tokens); ask for a shorter answer, or index the "
        "documents in shorter passages."
    )


def selected_passages_first(
    language_model: TextModel, question: str, passages: Sequence[Passage], **generation: Any
) -> tuple[tuple[Passage, ...], int, Mapping[str, Any]]:
    """Select passages that were retrieved before.

    Args:
        language_model: the model; passages are selected for the bundled extractive model only.
        question: the question.
        passages: the passages, best first.
        **generation: options of `LanguageModel.stream`, with ``max_new_tokens``.

    Returns:
        The passages with the selected ones first, the number of selected ones, and the options that they need.
    """
    found = tuple(passages)
    if not found:
        return found, 0, {}
    rag = Rag(_FixedResult(found), language_model, k=len(found))
    if not selects_passages(language_model):
        return found, len(found), {}
    selected = rag._select(language_model, question, found, **generation)
    options = {name: value for name, value in selected.options.items() if name not in generation}
    own = selected.passage_prompt.passages
    return _first(own, found), len(own), options


def _first(selected: Sequence[Passage], passages: Sequence[Passage]) -> tuple[Passage, ...]:
    """Return all passages, with the selected ones first."""
    return (*selected, *(passage for passage in passages if not any(passage is each for each in selected)))


@dataclass(frozen=True, slots=True)
class _FixedResult:
    """A `Searcher` with a fixed result."""

    passages: Sequence[Passage]

    def search(self, question: str, k: int = 5) -> list[Passage]:
        return list(self.passages[:k])


def _similar_answers(sessions: SessionStore | None, question: str) -> list[str]:
    """Return the answers to similar questions, or none if the store cannot be read, because drafts are optional."""
    if sessions is None:
        return []
    try:
        return [session.answer for session in sessions.similar(question)]
    except (sqlite3.Error, OSError) as error:
        warnings.warn(f"The sessions were not searched: {error}", stacklevel=2)
        return []


def _keep(sessions: SessionStore, question: str, answer: Answer) -> None:
    """Store an answer, unless it was cancelled or is empty; warn if it cannot be stored."""
    if answer.finish_reason == "cancelled" or not answer.text.strip():
        return
    try:
        sessions.add(question, answer.text)
    except (sqlite3.Error, OSError) as error:
        warnings.warn(f"The answer was not kept as a session: {error}", stacklevel=2)


def _as_tuple(stop: str | Sequence[str]) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop)
