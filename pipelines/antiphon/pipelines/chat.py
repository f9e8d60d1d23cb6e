"""A conversation about documents: each turn stays in the prompt with its passages and is prefilled once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from antiphon.accel import Completion, PrefixCache, TextModel
from antiphon.accel.text.messages import CountedPrompt, Message, TokenizedPrompt
from antiphon.pipelines.answer import Answer, AnswerStream
from antiphon.pipelines.prompt import Prompt
from antiphon.pipelines.rag import MAX_NEW_TOKENS, Rag, fit
from antiphon.pipelines.references import passage_references
from antiphon.retrieval import Passage

REWRITE = (
    "You rewrite the last question of a conversation so that it can be understood without the conversation: put what "
    "its pronouns stand for in their place. You say the rewritten question and nothing else."
)
REMEMBERED = 3
"""How many of the latest turns a question is rewritten by."""

QUESTION_TOKENS = 64
"""The longest rewritten question."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A question, the passages and messages that it was put to the model with, and what the model said."""

    question: str
    passages: tuple[Passage, ...]
    messages: tuple[Message, ...]
    references: tuple[str, ...]
    text: str


class Chat:
    """Questions that follow each other, each answered from passages of its own and with the turns before it in view.

    A turn's passages stay where they were in the prompt, so that the prompt of the next turn goes on from this one and
    only what is new is read (``answer.steps.prefill_tokens``). What earlier turns quoted and said is drafted from too.
    Where the turns and the next answer no longer fit the context window, the oldest turns leave the prompt, more of
    them than necessary, so that the turns after it go on from each other again; ``dropped`` counts them.

    With ``rewrite`` a question after the first is rewritten by the model for the search, so that "And in winter?" is
    found; the model is asked the question as it stands. ``searched`` is what was searched for last.

    Options of the ``rag`` hold here too. Ask one question at a time; each conversation has a chat of its own.
    """

    def __init__(self, rag: Rag, *, rewrite: bool = False) -> None:
        self.rag = rag
        self.rewrite = rewrite
        self.turns: list[Turn] = []
        self.dropped = 0
        self.searched = ""
        self._prefix = PrefixCache()

    def ask(self, question: str, *, k: int | None = None, sessions: bool = True, **generation: Any) -> Answer:
        """The whole answer; see `stream`, whose pieces it joins."""
        return self.stream(question, k=k, sessions=sessions, **generation).to_end().answer

    def stream(self, question: str, *, k: int | None = None, sessions: bool = True, **generation: Any) -> AnswerStream:
        """The answer piece by piece, as `Rag.stream` gives it; when it ends or is closed it becomes a turn.

        An answer that failed or says nothing is none.

        Raises:
            ValueError: as `Rag.stream`; or the prompt is no messages, for want of a chat template.
        """
        is_rewritten = self.rewrite and bool(self.turns)
        self.searched = self._rewritten(question) if is_rewritten else question
        found = self.rag.find(self.searched, k)
        answer = generation.setdefault("max_new_tokens", MAX_NEW_TOKENS)
        dropped, known = self._dropping(question, found, answer)
        make = partial(self._prompt, question, dropped)
        passages, prompt, tokenized = fit(make, found, self.rag.language_model, answer, known)
        earlier = [*chain.from_iterable((*turn.references, turn.text) for turn in reversed(self.turns))]
        stream = self.rag.begin(
            question,
            passages,
            prompt,
            tokenized,
            references=list(dict.fromkeys(earlier)),
            sessions=sessions,
            kept_as=self.searched,
            prefix=self._prefix,
            then=[partial(self._record, question, passages)],
            **generation,
        )
        self.dropped = dropped  # not before: a question that is refused costs the conversation nothing
        return stream

    def _prompt(self, question: str, dropped: int, passages: Sequence[Passage]) -> Prompt:
        """The turns but for those dropped, and then the question with its passages."""
        own = self.rag.prompt(question, passages)
        instructions, asked = _split(own)
        turns = [(*turn.messages, {"role": "assistant", "content": turn.text}) for turn in self.turns[dropped:]]
        return Prompt((*instructions, *chain.from_iterable(turns), *asked), own.stop, own.answers)

    def _dropping(
        self, question: str, found: tuple[Passage, ...], answer: int
    ) -> tuple[int, TokenizedPrompt | CountedPrompt | None]:
        """How many of the oldest turns to drop; where all do not fit, down to half of the window, to last a while.

        With it the prompt, where it had to be tokenized to find out.
        """
        window, dropped = self.rag.language_model.context_window, self.dropped
        if window is None:
            return dropped, None
        room, tokenized = window, self._tokenized(question, dropped, found)
        while dropped < len(self.turns) and tokenized.count + answer > room:
            room, dropped = window // 2, dropped + 1
            tokenized = self._tokenized(question, dropped, found)
        return dropped, tokenized

    def _tokenized(self, question: str, dropped: int, passages: tuple[Passage, ...]) -> TokenizedPrompt | CountedPrompt:
        return self.rag.language_model.tokenize(self._prompt(question, dropped, passages).content)

    def _record(self, question: str, passages: tuple[Passage, ...], completion: Completion) -> None:
        if not completion.text.strip():
            return
        own = self.rag.prompt(question, passages)
        references = own.answers or tuple(passage_references(passages))
        self.turns.append(Turn(question, passages, _split(own)[1], references, completion.text))

    def _rewritten(self, question: str) -> str:
        """The question as it would be asked without what was said before, in the model's words."""
        return rewritten(self.rag.language_model, self.turns[-REMEMBERED:], question)


def rewritten(language_model: TextModel, turns: Sequence[Turn], question: str) -> str:
    """A question that follows these turns, rewritten by the model to be understood alone; itself if that says nothing.

    It takes a short greedy generation of its own.
    """
    said = "\n".join(f"Question: {turn.question}\nAnswer: {turn.text}" for turn in turns)
    asked = f"{said}\n\nLast question: {question}\n\nRewritten question:"
    messages = ({"role": "system", "content": REWRITE}, {"role": "user", "content": asked})
    sources = [question, *(text for turn in turns for text in (turn.question, turn.text))]
    completion = language_model.generate(messages, references=sources, max_new_tokens=QUESTION_TOKENS, stop="\n")
    return completion.text.strip() or question


def _split(prompt: Prompt) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """The instructions that stand first in a conversation, and the messages of the turn."""
    own = () if isinstance(prompt.content, str) else prompt.content
    if not own:
        raise ValueError(
            "A conversation is made of messages, and this prompt is one text; take a model whose tokenizer has a chat "
            "template, or a Rag with a prompt of messages."
        )
    return tuple(m for m in own if m["role"] == "system"), tuple(m for m in own if m["role"] != "system")
