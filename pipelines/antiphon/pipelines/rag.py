"""Retrieval-augmented generation: `Rag.stream` retrieves passages, plans the request, generates and cites."""

from __future__ import annotations

import sqlite3
import warnings
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from threading import Lock
from time import perf_counter
from typing import Any, Protocol

from antiphon.accel import PrefixCache, TextModel
from antiphon.pipelines.answer import Answer, AnswerStream
from antiphon.pipelines.extractive_model import ONLY_QUOTES, ExtractiveModel, text_model
from antiphon.pipelines.prompt import PromptFormat, prompt_format, reader_prompt
from antiphon.pipelines.question import CANNOT_REWRITE, Question, rewrite_question
from antiphon.pipelines.relevance import bundled_encoders
from antiphon.pipelines.request_plan import NO_CONTEXT, RequestPlan, TurnContext, plan_request
from antiphon.pipelines.sessions import SessionStore
from antiphon.pipelines.tracing import Span, start_generation
from antiphon.retrieval import MetadataFilter, Passage


class PassageCache:
    """Prefix caches of the most recently used passages, so that a later question prefills only its own tokens.

    Passages are identified by their ids.

    Args:
        max_tokens: maximum number of tokens of prompts and answers whose KV cache is kept. Requests
            in progress may exceed this number. A small model needs about 25 KB per token in half
            precision.

    Raises:
        ValueError: ``max_tokens`` is negative.
    """

    def __init__(self, max_tokens: int) -> None:
        if max_tokens < 0:
            raise ValueError(f"max_tokens is {max_tokens}; give the number of tokens to keep, or 0 for none.")
        self.max_tokens = max_tokens
        self._prefixes: OrderedDict[str, PrefixCache] = OrderedDict()
        self._lock = Lock()

    @property
    def size(self) -> int:
        """The number of tokens that are kept."""
        with self._lock:
            return sum(prefix.size for prefix in self._prefixes.values())

    def prefix_of(self, passage: Passage) -> PrefixCache:
        """Return the prefix cache of a passage. The least recently used caches beyond ``max_tokens`` are dropped."""
        with self._lock:
            prefix = self._prefixes.setdefault(passage.id, PrefixCache())
            self._prefixes.move_to_end(passage.id)
            size = sum(each.size for each in self._prefixes.values())
            while size > self.max_tokens and len(self._prefixes) > 1:
                _, oldest = self._prefixes.popitem(last=False)
                size -= oldest.size
            return prefix

    def clear(self) -> None:
        """Drop all prefix caches and free their memory."""
        with self._lock:
            self._prefixes.clear()


class Searcher(Protocol):
    """Retrieves passages for a question: `antiphon.retrieval.Retriever`, or any object with this ``search`` method.

    To support filters, the method also needs a parameter ``where``.
    """

    def search(self, question: str, k: int = 5) -> list[Passage]:
        """Return the ``k`` best passages, best first."""


class Rag:
    """Answers questions from documents. The retrieved passages are part of the prompt and references for drafting.

    The models `extractive` and `reader` get only selected lines (see `passage_selection`): the
    answer starts with the best lines, or is a refusal. The passages of these lines come first in
    ``Answer.passages``, and only they are in the prompt. Any other model gets one prompt with all
    passages that fit its context window together with ``max_new_tokens``.

    Args:
        language_model: the model that generates the answer, or its name (see `text_model`); by default
            `ExtractiveModel`, which only quotes.
        prompt: function that makes the prompt of a question and its passages, such as `template_prompt`; by default
            `prompt_format` selects it.
        sessions: store of all answers; answers to similar questions become references for drafting,
            which saves steps. The output stays the same (except at ties in half precision).
        passage_cache_tokens: maximum number of tokens in the KV caches of recently used passages
            that are kept (see `PassageCache`). Later questions about these passages need less
            prefill. 0: none.
        quote_first: for models that follow instructions, let streams have a ``quote``: the best
            line of the passages, which can be shown during the prefill.
        rewrite: let the model rewrite the questions of a conversation for retrieval, with a short generation. By
            default, and if the rewriting is not usable, `Question.of` completes a follow-up question.

    Raises:
        ValueError: ``k`` or ``passage_cache_tokens`` is out of range, the model's prompt format is unknown, or
            ``rewrite`` or ``prompt`` is set for a model that only quotes.
        ImportError: the model needs selected lines, and the package of the sentence encoder is not installed.
    """

    def __init__(
        self,
        retriever: Searcher,
        language_model: TextModel | str | None = None,
        *,
        k: int = 5,
        prompt: PromptFormat | None = None,
        sessions: SessionStore | None = None,
        passage_cache_tokens: int = 0,
        quote_first: bool = True,
        rewrite: bool = False,
    ) -> None:
        if k < 1:
            raise ValueError(f"k is {k}; an answer needs at least 1 passage.")
        self.retriever = retriever
        self.language_model = model = text_model(language_model)
        self.k = k
        self.prompt = prompt
        self.sessions = sessions
        self.passage_cache = PassageCache(passage_cache_tokens) if passage_cache_tokens else None
        self.quote_first = quote_first
        self.rewrite = rewrite
        is_quoting = prompt is None and prompt_format(model) is reader_prompt
        if rewrite and is_quoting:
            raise ValueError(CANNOT_REWRITE.format(model.name))
        if prompt is not None and isinstance(model, ExtractiveModel):
            raise ValueError(ONLY_QUOTES.format("a prompt of your own"))
        if is_quoting:
            bundled_encoders()  # loaded now, so that the first question does not wait for it

    def ask(
        self,
        question: str | Question,
        *,
        k: int | None = None,
        where: MetadataFilter | None = None,
        sessions: bool = True,
        **generation: Any,
    ) -> Answer:
        """Return the complete answer to a question. See `stream` for errors.

        Args:
            k: number of passages to retrieve; by default the constructor's ``k``.
            where: only passages that match this filter are retrieved.
            sessions: read and write the store of sessions, if there is one.
            **generation: options of `LanguageModel.stream`: ``max_new_tokens`` (see
                `request_plan.default_max_new_tokens`), ``temperature``, ``stop``, ...
        """
        return self.stream(question, k=k, where=where, sessions=sessions, **generation).to_end().answer

    def stream(
        self,
        question: str | Question,
        *,
        k: int | None = None,
        where: MetadataFilter | None = None,
        sessions: bool = True,
        context: TurnContext = NO_CONTEXT,
        prefix: PrefixCache | None = None,
        on_end: Callable[[Answer], None] | None = None,
        **generation: Any,
    ) -> AnswerStream:
        """Return the answer as a stream; its ``passages`` are available at once. See `ask` for the arguments.

        Args:
            on_end: called with the answer when the stream has ended or is closed.

        Raises:
            ValueError: no passage was found, not even one fits the context window, or an option is
                out of range.
            TypeError: an option does not exist.
        """
        attributes = {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.workflow.name": "answer",
        }
        root, started = Span("answer", attributes), perf_counter()
        try:
            with root.activated():
                # 1. Retrieve the passages that match the question best, and make the prompt.
                asked = self.complete_question(question, context)
                plan = self.plan(asked, k=k, where=where, sessions=sessions, context=context, **generation)
                # 2. Generate, drafting from the passages, the conversation and similar answers.
                chat = start_generation("chat", plan.model, plan.model, plan.parameters)
                try:
                    stream = plan.start(self.language_model, prefix=prefix)
                except BaseException as error:
                    chat.end(error)
                    raise
        except BaseException as error:
            root.end(error)
            raise
        # 3. When the text has ended: cite the spans that are quoted verbatim from a passage.
        callbacks = [] if on_end is None else [on_end]
        if sessions and self.sessions is not None:
            callbacks.append(partial(_keep, self.sessions, asked.complete))
        return AnswerStream(asked, plan, stream, callbacks, (root, chat), started)

    def plan(
        self,
        question: Question,
        *,
        k: int | None = None,
        where: MetadataFilter | None = None,
        sessions: bool = True,
        context: TurnContext = NO_CONTEXT,
        **generation: Any,
    ) -> RequestPlan:
        """Retrieve passages and return the plan of the request: prompt, references and all options.

        Raises:
            ValueError: see `stream`.
        """
        with Span("retrieve", {"gen_ai.operation.name": "retrieval"}) as span:
            if generation.get("response_prefix") and isinstance(self.language_model, ExtractiveModel):
                raise ValueError(ONLY_QUOTES.format("a response_prefix"))
            found = self.retrieve(question, k, where=where)
            span.set({"antiphon.passages": len(found)})
        with Span("prompt"):
            similar = _similar_answers(self.sessions if sessions else None, question.complete)
            plan = plan_request(
                self.language_model,
                question,
                found,
                context=replace(context, similar_answers=similar),
                prompt=self.prompt,
                prefix_of=self.passage_cache.prefix_of if self.passage_cache else None,
                **generation,
            )
            return plan if self.quote_first else replace(plan, quote=None)

    def complete_question(self, question: str | Question, context: TurnContext) -> Question:
        """Return the question with its complete form, which depends on the conversation.

        Raises:
            ValueError: the question is empty or cannot be encoded.
        """
        asked = Question.of(question, context.history)
        return rewrite_question(self.language_model, asked, context.history) if self.rewrite else asked

    def retrieve(
        self, question: Question, k: int | None = None, *, where: MetadataFilter | None = None
    ) -> tuple[Passage, ...]:
        """Return the passages for a question, best first.

        Raises:
            ValueError: no passage was found.
        """
        from antiphon.retrieval import Retriever

        options: dict[str, Any] = {} if where is None else {"where": where}
        with ExitStack() as stage:

            def begin(name: str) -> None:
                """Record a stage of the search: "embed", "search" or "rerank"."""
                stage.close()
                stage.enter_context(Span(name))

            if isinstance(self.retriever, Retriever):
                options["on_stage"] = begin
            found = self.retriever.search(question.complete, self.k if k is None else k, **options)
        if not found:
            matching = "" if where is None else " that matches where"
            raise ValueError(
                f"The search found no passage{matching} for {question.complete!r}; an answer needs at least one."
            )
        return tuple(found)


def _similar_answers(sessions: SessionStore | None, question: str) -> list[str]:
    """Return the answers to similar questions.

    If the store cannot be read, the result is empty, because drafts are optional.
    """
    if sessions is None:
        return []
    try:
        return [session.answer for session in sessions.similar(question)]
    except (sqlite3.Error, OSError) as error:
        warnings.warn(f"The sessions were not searched: {error}", stacklevel=2)
        return []


def _keep(sessions: SessionStore, question: str, answer: Answer) -> None:
    """Store an answer that is neither cancelled nor empty; warn if it cannot be stored."""
    if answer.finish_reason == "cancelled" or not answer.text.strip():
        return
    try:
        sessions.add(question, answer.text)
    except (sqlite3.Error, OSError) as error:
        warnings.warn(f"The answer was not kept as a session: {error}", stacklevel=2)
