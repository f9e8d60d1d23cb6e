"""Citations of any chain, by a callback: what its retrievers found is gathered in the call, and its answers are cited.

A passage is cited where it stands in the very prompt that was answered, and was found in the same call, or rides on a
message of that prompt. So in a run that serves many, nobody is told of what another was given.
"""

from __future__ import annotations

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

from antiphon.integrations.langchain.answers import annotated
from antiphon.integrations.langchain.documents import document_of, passage_of
from antiphon.integrations.langchain.references import references_of
from antiphon.integrations.prompt_passages import PromptPassages
from antiphon.retrieval import Passage


@dataclass(frozen=True, slots=True)
class CitedAnswer:
    """What a model said in a call, the documents that stood in its prompt, and where it repeats them verbatim."""

    text: str
    documents: tuple[Document, ...]
    citations: tuple[Citation, ...]


class Citing(BaseCallbackHandler):
    """Cites the answers of one call of a chain, an agent or a graph, whichever retrievers and models it is made of.

    Give each call its own, ``chain.invoke(question, config={"callbacks": [citing]})``, and ask it afterwards, once a
    stream has ended. Documents count that a retriever returned in this call, or that a message carries (a tool's
    artifact), and that stand whole in the prompt of the answer.
    """

    run_inline = True  # in an event loop too, documents are here before the answer is
    raise_error = True

    def __init__(self) -> None:
        self._lock = Lock()
        self._parents: dict[UUID, UUID | None] = {}
        self._found: dict[UUID, list[Passage]] = {}
        self._asked: dict[UUID, tuple[str, tuple[Passage, ...]]] = {}
        self._answers: list[CitedAnswer] = []

    @property
    def answers(self) -> tuple[CitedAnswer, ...]:
        """Everything that models said in this call, in the order in which they ended.

        Raises:
            ValueError: it was given to more calls than one.
        """
        with self._lock:
            calls = sum(parent is None for parent in self._parents.values())
            if calls > 1:
                raise ValueError(f"This handler has seen {calls} calls; give each call a Citing() of its own.")
            return tuple(self._answers)

    @property
    def answer(self) -> CitedAnswer:
        """The last thing that a model said in words.

        Raises:
            ValueError: no model has said anything yet, or the handler was given to more calls than one.
        """
        said = [answer for answer in self.answers if answer.text]
        if not said:
            raise ValueError("No model has answered yet; run the chain with this handler, a stream to its end, first.")
        return said[-1]

    @property
    def citations(self) -> tuple[Citation, ...]:
        """Those of the last answer; errors as `answer`."""
        return self.answer.citations

    def on_chain_start(self, *given: Any, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any) -> None:
        """A part of the call begins."""
        self._note(run_id, parent_run_id)

    def on_tool_start(self, *given: Any, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any) -> None:
        """A part of the call begins."""
        self._note(run_id, parent_run_id)

    def on_retriever_start(self, *given: Any, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any) -> None:
        """A part of the call begins."""
        self._note(run_id, parent_run_id)

    def on_retriever_end(self, documents: Sequence[Document], *, run_id: UUID, **kwargs: Any) -> None:
        """Documents were found."""
        passages = [passage for document in documents if (passage := passage_of(document)) is not None]
        with self._lock:
            self._found[run_id] = passages

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        """A chat model is asked."""
        turns = [turn for each in messages for turn in each]
        self._ask(run_id, parent_run_id, "\n".join(str(turn.text) for turn in turns), references_of(turns))

    def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        """A text-in, text-out model is asked."""
        self._ask(run_id, parent_run_id, "\n".join(prompts), ())

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """A model has answered."""
        with self._lock:
            prompt, carried = self._asked.pop(run_id, ("", ()))
            near = list(self._nearest_first(run_id))
        for generation in (each for batch in response.generations for each in batch[:1]):
            text = str(generation.message.text) if isinstance(generation, ChatGeneration) else generation.text
            passages = carried or _standing(prompt, near)
            cited = CitedAnswer(text, tuple(map(document_of, passages)), tuple(annotated(text, passages)))
            with self._lock:
                self._answers.append(cited)

    def _note(self, run_id: UUID, parent_run_id: UUID | None) -> None:
        with self._lock:
            self._parents[run_id] = parent_run_id if parent_run_id in self._parents else None

    def _ask(self, run_id: UUID, parent_run_id: UUID | None, prompt: str, carried: tuple[Passage, ...]) -> None:
        self._note(run_id, parent_run_id)
        with self._lock:
            self._asked[run_id] = prompt, carried

    def _nearest_first(self, run_id: UUID) -> Iterator[list[list[Passage]]]:
        """What each retriever found below each run that holds this one, the nearest first."""
        for above in self._above(run_id):
            yield [found for run, found in self._found.items() if above in self._above(run)]

    def _above(self, run_id: UUID) -> list[UUID]:
        above, run = [], self._parents.get(run_id)
        while run is not None:
            above.append(run)
            run = self._parents.get(run)
        return above


def _standing(prompt: str, near: Sequence[Sequence[Sequence[Passage]]]) -> tuple[Passage, ...]:
    """The nearest that stand in the prompt; of words that were found in different documents nobody knows the source."""
    standing = PromptPassages(prompt)
    for found in near:
        if standing.of([passage for passages in found for passage in passages]):
            return standing.of(unambiguous(found))
    return ()


def unambiguous(found: Sequence[Sequence[Passage]]) -> list[Passage]:
    """What several searches found, without texts that one of them found in other documents than another."""
    places: dict[str, set[frozenset[tuple[str, str, int]]]] = {}
    for passages in found:
        own: dict[str, set[tuple[str, str, int]]] = {}
        for passage in passages:
            own.setdefault(passage.text, set()).add((passage.source, passage.id, passage.start))
        for text, where in own.items():
            places.setdefault(text, set()).add(frozenset(where))
    return [passage for passages in found for passage in passages if len(places[passage.text]) == 1]
