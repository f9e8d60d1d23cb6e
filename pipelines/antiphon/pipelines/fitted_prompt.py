"""Builds the prompt of a question with as many passages and earlier messages as fit the context window."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from antiphon.accel import TextModel
from antiphon.accel.text.messages import CountedPrompt, Message, TokenizedPrompt, with_template_variables
from antiphon.accel.text.parameters import ContextLengthError
from antiphon.pipelines.prompt import Prompt, PromptFormat, reader_prompt
from antiphon.pipelines.question import Question
from antiphon.retrieval import Passage


@dataclass(frozen=True, slots=True)
class FittedPrompt:
    """A prompt that fits the context window, and its passages.

    Attributes:
        passages: the passages in the prompt, best first.
        prompt: the prompt as text or messages.
        tokenized: the prompt's tokens, or only their number if only the model's server can
            tokenize.
    """

    passages: tuple[Passage, ...]
    prompt: Prompt
    tokenized: TokenizedPrompt | CountedPrompt


@dataclass(frozen=True, slots=True)
class PromptBuilder:
    """Builds prompts of one question.

    Attributes:
        language_model: the model; its context window limits the prompt.
        prompt_format: makes the prompt of a question and passages.
        question: the question.
        max_new_tokens: tokens reserved for the answer; at most half of the context window is reserved.
        history: the earlier messages of the conversation.
        instructions: system messages of the client.
        thinking: whether the model thinks; None: the default of its chat template.
        template_variables: further variables of the chat template.
    """

    language_model: TextModel
    prompt_format: PromptFormat
    question: Question
    max_new_tokens: int
    history: Sequence[Message] = ()
    instructions: Sequence[Message] = ()
    thinking: bool | None = None
    template_variables: Mapping[str, Any] = field(default_factory=dict)

    def build(self, found: tuple[Passage, ...]) -> FittedPrompt:
        """Return the prompt with as many of the best passages as fit.

        Args:
            found: the passages, best first.

        Raises:
            ValueError: not even one passage fits.
        """
        for count in range(len(found), 0, -1):
            if (fitted := self.build_joined(found[:count])) is not None:
                return fitted
        needed = self._tokenize(self.prompt(found[:1])).count
        raise ContextLengthError(
            f"The question and its best passage take {needed} tokens, which with max_new_tokens={self.max_new_tokens} "
            f"exceeds the context window of {self.language_model.name!r} ({self.language_model.context_window} "
            f"tokens). The maximum context length is {self.language_model.context_window} tokens: ask for a shorter "
            "answer, or index the documents in shorter passages."
        )

    def build_joined(self, passages: Sequence[Passage]) -> FittedPrompt | None:
        """Return the prompt with all these passages, or None if the prompt does not fit."""
        prompt = self.prompt(tuple(passages))
        tokenized = self._tokenize(prompt)
        window = self.language_model.context_window
        fits = window is None or tokenized.count + min(self.max_new_tokens, window // 2) <= window
        return FittedPrompt(tuple(passages), prompt, tokenized) if fits else None

    def build_with_history(self, found: tuple[Passage, ...]) -> tuple[PromptBuilder, FittedPrompt]:
        """Shorten the conversation until it fits together with all passages; return the new builder and its prompt.

        The kept part starts at the earliest user message that fits. If the passages do not fit even without the
        conversation, the last passages are left out.

        Args:
            found: the passages, best first.

        Raises:
            ValueError: not even one passage fits.
        """
        starts = [place for place, message in enumerate(self.history) if place and message["role"] == "user"]
        builders = [self, *(replace(self, history=self.history[start:]) for start in (*starts, len(self.history)))]
        if (whole := self.build_joined(found)) is not None:
            return self, whole
        shorter = bisect_left(builders[:-1], True, lo=1, key=lambda each: each.build_joined(found) is not None)
        return builders[shorter], builders[shorter].build(found)

    def prompt(self, passages: Sequence[Passage]) -> Prompt:
        """Return the prompt: instructions, conversation, then the question with its passages.

        The prompts of `reader` and of models without a chat template have no place for a conversation, so they
        contain the complete form of the question.
        """
        own = self.prompt_format(self.question.text, passages)
        if isinstance(own.content, str) or self.prompt_format is reader_prompt:
            return self.prompt_format(self.question.complete, passages) if self.question.is_follow_up else own
        system = [message for message in own.content if message["role"] == "system"]
        turn = [message for message in own.content if message["role"] != "system"]
        texts = [str(message["content"]) for message in chain(system, self.instructions)]
        # One system message, because many chat templates accept only one.
        merged = [{"role": "system", "content": "\n\n".join(texts)}] if texts else []
        return replace(own, content=(*merged, *self.history, *turn))

    def _tokenize(self, prompt: Prompt) -> TokenizedPrompt | CountedPrompt:
        content = with_template_variables(prompt.content, self.thinking, self.template_variables)
        return self.language_model.tokenize(content)
