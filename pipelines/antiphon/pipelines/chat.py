"""Conversations about documents: earlier turns stay in the prompt with their passages, and are prefilled once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from antiphon.accel import PrefixCache, TextModel
from antiphon.accel.text.messages import CountedPrompt, Message, TokenizedPrompt
from antiphon.pipelines.answer import Answer, AnswerStream
from antiphon.pipelines.prompt import Prompt
from antiphon.pipelines.rag import MAX_NEW_TOKENS, FittedPrompt, Rag, TurnContext, fit_passages
from antiphon.pipelines.references import passage_references
from antiphon.retrieval import Passage

REWRITE = (
    "You rewrite the last question of a conversation so that it can be understood without the conversation: put what "
    "its pronouns stand for in their place. You say the rewritten question and nothing else."
)
"""The system message for rewriting a question."""

REWRITE_TURNS = 3
"""Number of latest turns in the prompt that rewrites a question."""

QUESTION_TOKENS = 64
"""Maximum length of a rewritten question in tokens."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation.

    Attributes:
        question: the question.
        passages: its passages.
        messages: the messages that it added to the prompt.
        references: the texts that its answer was drafted from.
        text: the answer.
    """

    question: str
    passages: tuple[Passage, ...]
    messages: tuple[Message, ...]
    references: tuple[str, ...]
    text: str


class Chat:
    """A conversation: each question is answered from its own passages, with the earlier turns in the prompt.

    The passages of a turn keep their place in the prompt, so that the next prompt extends this one and only its new
    tokens are prefilled (``answer.steps.prefill_tokens``). Answers are drafted from earlier turns, too. If the turns
    and the next answer exceed the context window, the oldest turns are dropped until half of it is free, so that the
    following turns extend each other again.

    Ask one question at a time; use one `Chat` for each conversation.

    Args:
        rag: the pipeline, whose options apply here, too.
        rewrite: let the model rewrite each question after the first for retrieval, so that "And in winter?" finds
            passages. The prompt contains the original question.

    Attributes:
        turns: the turns so far.
        dropped_turns: the number of turns that are no longer in the prompt.
        search_query: the latest text that passages were searched for.
    """

    def __init__(self, rag: Rag, *, rewrite: bool = False) -> None:
        self.rag = rag
        self.rewrite = rewrite
        self.turns: list[Turn] = []
        self.dropped_turns = 0
        self.search_query = ""
        self._prefix = PrefixCache()

    def ask(self, question: str, *, k: int | None = None, sessions: bool = True, **generation: Any) -> Answer:
        """Return the complete answer to a question. See `stream` for errors.

        Args:
            question: the question.
            k: passages to retrieve; by default those of the pipeline.
            sessions: read and write the store of sessions, if there is one.
            **generation: options of `LanguageModel.stream`.
        """
        return self.stream(question, k=k, sessions=sessions, **generation).to_end().answer

    def stream(self, question: str, *, k: int | None = None, sessions: bool = True, **generation: Any) -> AnswerStream:
        """Return the answer as a stream; it becomes a turn when it ends or is closed, unless it failed or is empty.

        Args:
            question: the question.
            k: passages to retrieve; by default those of the pipeline.
            sessions: read and write the store of sessions, if there is one.
            **generation: options of `LanguageModel.stream`.

        Raises:
            ValueError: as `Rag.stream`; or the prompt is not made of messages, because there is no chat template.
        """
        self.search_query = self._rewrite(question) if self.rewrite and self.turns else question
        max_new_tokens = generation.setdefault("max_new_tokens", MAX_NEW_TOKENS)
        dropped = self.dropped_turns

        def build_prompt(found: tuple[Passage, ...]) -> FittedPrompt:
            nonlocal dropped
            dropped, tokenized = self._drop_turns(question, found, max_new_tokens)
            make = partial(self._prompt, question, dropped)
            return fit_passages(make, found, self.rag.language_model, max_new_tokens, tokenized)

        earlier = chain.from_iterable((*turn.references, turn.text) for turn in reversed(self.turns))
        references = list(dict.fromkeys(earlier))
        context = TurnContext(self.search_query, build_prompt, references, self._prefix, self._record)
        stream = self.rag.stream(question, k=k, sessions=sessions, context=context, **generation)
        self.dropped_turns = dropped  # only now, so that a refused question does not change the conversation
        return stream

    def _prompt(self, question: str, dropped: int, passages: Sequence[Passage]) -> Prompt:
        """Return the prompt of the turns that are not dropped, and of the question with its passages."""
        own = self.rag.prompt(question, passages)
        instructions, messages = _split(own)
        turns = [(*turn.messages, {"role": "assistant", "content": turn.text}) for turn in self.turns[dropped:]]
        return Prompt((*instructions, *chain.from_iterable(turns), *messages), own.stop, own.answers)

    def _drop_turns(
        self, question: str, found: tuple[Passage, ...], max_new_tokens: int
    ) -> tuple[int, TokenizedPrompt | CountedPrompt | None]:
        """Return the number of turns to drop, and the tokenized prompt if it was needed to find out.

        If not all turns fit, they are dropped until the prompt takes at most half of the window.
        """
        window, dropped = self.rag.language_model.context_window, self.dropped_turns
        if window is None:
            return dropped, None
        limit, tokenized = window, self._tokenized(question, dropped, found)
        while dropped < len(self.turns) and tokenized.count + max_new_tokens > limit:
            limit, dropped = window // 2, dropped + 1
            tokenized = self._tokenized(question, dropped, found)
        return dropped, tokenized

    def _tokenized(self, question: str, dropped: int, passages: tuple[Passage, ...]) -> TokenizedPrompt | CountedPrompt:
        return self.rag.language_model.tokenize(self._prompt(question, dropped, passages).content)

    def _record(self, answer: Answer) -> None:
        """Add the answer as a turn, unless it is empty."""
        if not answer.text.strip():
            return
        own = self.rag.prompt(answer.question, answer.passages)
        references = own.answers or tuple(passage_references(answer.passages))
        self.turns.append(Turn(answer.question, answer.passages, _split(own)[1], references, answer.text))

    def _rewrite(self, question: str) -> str:
        return rewrite_question(self.rag.language_model, self.turns[-REWRITE_TURNS:], question)


def rewrite_question(language_model: TextModel, turns: Sequence[Turn], question: str) -> str:
    """Rewrite a question so that it can be understood without the earlier turns, with a short greedy generation.

    Args:
        language_model: the language model.
        turns: the earlier turns.
        question: the question.

    Returns:
        The rewritten question, or the original one if the model generates nothing.
    """
    history = "\n".join(f"Question: {turn.question}\nAnswer: {turn.text}" for turn in turns)
    content = f"{history}\n\nLast question: {question}\n\nRewritten question:"
    messages = ({"role": "system", "content": REWRITE}, {"role": "user", "content": content})
    sources = [question, *(text for turn in turns for text in (turn.question, turn.text))]
    completion = language_model.generate(messages, references=sources, max_new_tokens=QUESTION_TOKENS, stop="\n")
    return completion.text.strip() or question


def _split(prompt: Prompt) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Split the messages of a prompt into the system messages and those of the turn."""
    messages = () if isinstance(prompt.content, str) else prompt.content
    if not messages:
        raise ValueError(
            "A conversation needs a prompt of messages, and this prompt is a string; use a model whose tokenizer has a "
            "chat template, or give Rag a prompt of messages."
        )
    return tuple(m for m in messages if m["role"] == "system"), tuple(m for m in messages if m["role"] != "system")
