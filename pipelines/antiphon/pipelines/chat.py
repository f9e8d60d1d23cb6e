"""Conversations about documents: each question gets new passages, and its prompt contains the earlier turns."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

from antiphon.accel import PrefixCache
from antiphon.accel.text.messages import Message
from antiphon.pipelines.answer import Answer, AnswerStream
from antiphon.pipelines.rag import Rag
from antiphon.pipelines.request_plan import TurnContext, passage_references
from antiphon.retrieval import Passage


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation: a question, its answer, and the passages that the answer is based on."""

    question: str
    text: str
    passages: tuple[Passage, ...] = ()

    @property
    def messages(self) -> tuple[Message, Message]:
        """The turn as messages of user and assistant, without the passages."""
        return {"role": "user", "content": self.question}, {"role": "assistant", "content": self.text}


class Chat:
    """A conversation. For each question, new passages are retrieved, and the prompt contains the earlier turns.

    The prompt contains the earlier questions and answers, and only the new question's passages. The
    server builds the same prompt for the same conversation. A follow-up question is completed
    before passages are retrieved (see `Rag`). The passages and answers of earlier turns are
    references for drafting, too. If the conversation does not fit the context window, its oldest
    turns are left out of the prompt.

    Ask one question at a time; use one `Chat` for each conversation.

    Args:
        rag: the pipeline that retrieves and answers.

    Attributes:
        turns: the turns so far.
        search_query: the text of the latest search for passages.
    """

    def __init__(self, rag: Rag) -> None:
        self.rag = rag
        self.turns: list[Turn] = []
        self.dropped_turns = 0
        self.search_query = ""
        self._prefix = None if rag.language_model.tokenizer is None else PrefixCache()

    def ask(self, question: str, **options: Any) -> Answer:
        """Return the complete answer to a question. See `stream` for errors.

        Args:
            **options: as in `Rag.ask`.
        """
        return self.stream(question, **options).to_end().answer

    def stream(self, question: str, **options: Any) -> AnswerStream:
        """Return the answer as a stream.

        When the stream ends or is closed, the answer is added to ``turns`` unless it is empty.

        Args:
            **options: as in `Rag.ask`.

        Raises:
            ValueError: see `Rag.stream`.
        """
        history = tuple(chain.from_iterable(turn.messages for turn in self.turns))
        earlier = chain.from_iterable((*passage_references(turn.passages), turn.text) for turn in reversed(self.turns))
        context = TurnContext(history, references=tuple(dict.fromkeys(earlier)))
        stream = self.rag.stream(question, context=context, prefix=self._prefix, on_end=self._record, **options)
        self.dropped_turns, self.search_query = stream.plan.dropped_messages // 2, stream.question.complete
        return stream

    def _record(self, answer: Answer) -> None:
        """Add the answer as a turn, unless it is empty."""
        if answer.text.strip():
            self.turns.append(Turn(answer.question, answer.text, answer.passages))
