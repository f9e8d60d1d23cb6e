"""A callback handler that cites the answers of any chain.

It collects the documents that retrievers return during a call. A passage is cited only if the
prompt of the answer contains it. The passage must also come from the same call: from a retriever,
or from a message of the prompt. So concurrent calls never cite each other's documents.
"""

from __future__ import annotations

import html
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.messages.content import Citation
from langchain_core.outputs import ChatGeneration, LLMResult

from antiphon.integrations.langchain.documents import document_of, passage_of, references_of
from antiphon.integrations.langchain.outputs import annotate
from antiphon.retrieval import Passage


@dataclass(frozen=True, slots=True)
class CitedAnswer:
    """A model's answer, the documents in its prompt, and the spans that the answer copied from them."""

    text: str
    documents: tuple[Document, ...]
    citations: tuple[Citation, ...]


class CitationHandler(BaseCallbackHandler):
    """Cites the answers of one call of a chain, an agent or a graph.

    Create a handler for each call, pass it with
    ``chain.invoke(question, config={"callbacks": [handler]})``, and read its citations after the
    call or after the end of the stream. Documents can be cited if a retriever returned them in this
    call, or if a message carries them as a tool's artifact. The prompt of the answer must contain
    the document's whole text.
    """

    run_inline = True  # so that retriever events arrive before the answer in an event loop, too
    raise_error = True

    def __init__(self) -> None:
        self._lock = Lock()
        self._parents: dict[UUID, UUID | None] = {}
        self._found: dict[UUID, list[Passage]] = {}
        self._prompts: dict[UUID, str] = {}
        self._attached: dict[UUID, tuple[Passage, ...]] = {}
        self._answers: list[CitedAnswer] = []

    @property
    def answers(self) -> tuple[CitedAnswer, ...]:
        """All answers of models in this call, in the order in which they ended.

        Raises:
            ValueError: the handler was used for more than one call.
        """
        with self._lock:
            calls = sum(parent is None for parent in self._parents.values())
            if calls > 1:
                raise ValueError(f"This handler has seen {calls} calls; create a CitationHandler() for each call.")
            return tuple(self._answers)

    @property
    def answer(self) -> CitedAnswer:
        """The last answer with text.

        Raises:
            ValueError: no model has answered yet, or the handler was used for more than one call.
        """
        with_text = [answer for answer in self.answers if answer.text]
        if not with_text:
            raise ValueError("No model has answered yet; first run the chain with this handler, a stream to its end.")
        return with_text[-1]

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The citations of the last answer. The errors are the same as in `answer`."""
        return self.answer.citations

    def on_chain_start(self, *given: Any, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any) -> None:
        """Record the parent of a run."""
        with self._lock:
            self._parents[run_id] = parent_run_id if parent_run_id in self._parents else None

    on_tool_start = on_retriever_start = on_chain_start

    def on_retriever_end(self, documents: Sequence[Document], *, run_id: UUID, **kwargs: Any) -> None:
        """Record the documents that a retriever returned."""
        passages = [passage for document in documents if (passage := passage_of(document)) is not None]
        with self._lock:
            self._found[run_id] = passages

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], *, run_id: UUID, **kwargs: Any
    ) -> None:
        """Record the prompt of a chat model."""
        turns = [turn for batch in messages for turn in batch]
        self.on_llm_start(serialized, [str(turn.text) for turn in turns], run_id=run_id, **kwargs)
        with self._lock:
            self._attached[run_id] = references_of(turns)

    def on_llm_start(self, serialized: dict[str, Any], prompts: list[str], *, run_id: UUID, **kwargs: Any) -> None:
        """Record the prompt of a model."""
        self.on_chain_start(run_id=run_id, **kwargs)
        with self._lock:
            self._prompts[run_id] = "\n".join(prompts)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Record an answer and its citations."""
        with self._lock:
            prompt, attached = self._prompts.pop(run_id, ""), self._attached.pop(run_id, ())
            nearest = list(self._results_nearest_first(run_id))
        for generation in (each for batch in response.generations for each in batch[:1]):
            text = str(generation.message.text) if isinstance(generation, ChatGeneration) else generation.text
            passages = attached or _cited_passages(prompt, nearest)
            cited = CitedAnswer(text, tuple(map(document_of, passages)), tuple(annotate(text, passages)))
            with self._lock:
                self._answers.append(cited)

    def _results_nearest_first(self, run_id: UUID) -> Iterator[list[list[Passage]]]:
        """For each ancestor of a run, nearest first, yield the results of all retrievers below that ancestor."""
        for above in self._ancestors(run_id):
            yield [found for run, found in self._found.items() if above in self._ancestors(run)]

    def _ancestors(self, run_id: UUID) -> list[UUID]:
        above, run = [], self._parents.get(run_id)
        while run is not None:
            above.append(run)
            run = self._parents.get(run)
        return above


def _cited_passages(prompt: str, nearest: Sequence[Sequence[Sequence[Passage]]]) -> tuple[Passage, ...]:
    """Return the passages in the prompt that the nearest retrievers found; texts with several sources are left out."""
    in_prompt = PassagesInPrompt(prompt)
    for found in nearest:
        if in_prompt.select([passage for passages in found for passage in passages]):
            return in_prompt.select(unambiguous(found))
    return ()


def unambiguous(found: Sequence[Sequence[Passage]]) -> list[Passage]:
    """Join the results of several searches; drop each text that two searches found in different documents."""
    places: dict[str, set[frozenset[tuple[str, str, int]]]] = defaultdict(set)
    for passages in found:
        for text in {passage.text for passage in passages}:
            same = (passage for passage in passages if passage.text == text)
            places[text].add(frozenset((passage.source, passage.id, passage.start) for passage in same))
    return [passage for passages in found for passage in passages if len(places[passage.text]) == 1]


_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})|\\([nrtbf\"'\\/])")


class PassagesInPrompt:
    """A prompt that is searched for passages. White space and escapes (JSON, Python, HTML, XML) may differ."""

    def __init__(self, prompt: str) -> None:
        self._forms = tuple({_normalize_spaces(prompt), _normalize_spaces(_unescape(prompt))})

    def contains(self, passage: Passage) -> bool:
        """Return whether the prompt contains the whole text of the passage."""
        text = _normalize_spaces(passage.text)
        return bool(text) and any(text in form for form in self._forms)

    def select(self, passages: Sequence[Passage]) -> tuple[Passage, ...]:
        """Return the passages that the prompt contains, without duplicates."""
        return tuple(dict.fromkeys(passage for passage in passages if self.contains(passage)))


def _normalize_spaces(text: str) -> str:
    return " ".join(text.split())


def _unescape(text: str) -> str:
    plain = _ESCAPED.sub(_unescape_match, text)
    return html.unescape(plain) if "&" in plain else plain


def _unescape_match(found: re.Match[str]) -> str:
    if found[1]:
        return chr(int(found[1], 16))
    return " " if found[2] in "nrtbf" else found[2]
