"""One call of a language model: its prompt, parameters, stream and parsed output. Independent of frameworks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from antiphon.accel import Completion, TextModel
from antiphon.accel.text.completion import Piece, TextStream
from antiphon.accel.text.messages import PromptInput
from antiphon.accel.text.tool_calls import ParsedOutput, parse_tool_calls, visible_text
from antiphon.integrations.stream_readers import TimedStream
from antiphon.pipelines import passage_references
from antiphon.retrieval import Passage


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A prompt and how it is answered.

    Attributes:
        language_model: the model that answers.
        model: the name that the user gave to the model.
        prompt: text, messages or a conversation with tools.
        passages: references of the call.
        parameters: keyword arguments of `LanguageModel.stream`.
        timeout: seconds for the whole answer; None is no limit.
        tools: schemas of the arguments of the offered tools, by name.
        assistant_prefix: start of a forced tool call, which the prompt already contains.
        allows_parallel_calls: whether an answer may have several tool calls; else the first one counts.
    """

    language_model: TextModel
    model: str
    prompt: PromptInput
    passages: tuple[Passage, ...]
    parameters: Mapping[str, Any]
    timeout: float | None = None
    tools: Mapping[str, Any] = field(default_factory=dict)
    assistant_prefix: str = ""
    allows_parallel_calls: bool = True

    def stream(self) -> TextStream:
        """Return the stream of the answer; generation starts when its first piece is requested."""
        references = passage_references(self.passages)
        stream = self.language_model.stream(self.prompt, references=references, **self.parameters)
        return stream if self.timeout is None else TimedStream(stream, self.timeout)

    def complete(self) -> Completion:
        """Generate the whole completion."""
        return self.stream().to_end().completion

    def parse_output(self, completion: Completion) -> ParsedOutput:
        """Separate the answer's text from its tool calls."""
        text = self.assistant_prefix + completion.text
        parsed = parse_tool_calls(text, self.tools) if self.tools else ParsedOutput(text)
        return parsed if self.allows_parallel_calls else parsed.first_call_only()


class VisibleText:
    """The part of a streamed answer that can be shown because it cannot become a tool call.

    Args:
        call: the call whose answer is streamed.

    Attributes:
        shown: the text that was returned so far.
        reasoning: the thinking so far.
    """

    def __init__(self, call: ModelCall) -> None:
        self.shown = self.reasoning = ""
        self._text = call.assistant_prefix
        self._tools = call.tools

    def push(self, piece: Piece) -> str:
        """Append a piece and return the text of the answer that can be shown now."""
        if piece.is_thinking:
            self.reasoning += piece.text
            return ""
        self._text += piece.text
        certain = visible_text(self._text, self._tools, len(self.shown)) if self._tools else self._text
        new, self.shown = certain[len(self.shown) :], certain
        return new
