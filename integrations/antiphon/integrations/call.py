"""One call of a language model: what is asked, read and told apart. Knows no framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from antiphon.accel import Completion, TextModel
from antiphon.accel.text.completion import Pieces
from antiphon.accel.text.messages import PromptInput
from antiphon.accel.text.tool_calls import Said, read, shown
from antiphon.integrations.reading import Timed
from antiphon.pipelines import passage_references
from antiphon.retrieval import Passage


@dataclass(frozen=True, slots=True)
class Call:
    """A prompt, the passages that the answer may quote, who answers it, and how.

    ``model`` is what the user calls the language model; ``opening`` is how the answer begins because the prompt
    already says so; ``tools`` are the names of those offered.
    """

    language_model: TextModel
    model: str
    prompt: PromptInput
    passages: tuple[Passage, ...]
    parameters: Mapping[str, Any]
    timeout: float | None = None
    tools: frozenset[str] = frozenset()
    opening: str = ""

    def begin(self) -> Pieces:
        """The stream of the answer; nothing is generated before its first piece is asked for."""
        references = passage_references(self.passages)
        stream = self.language_model.stream(self.prompt, references=references, **self.parameters)
        return stream if self.timeout is None else Timed(stream, self.timeout)

    def read(self) -> Completion:
        """The whole completion."""
        return self.begin().to_end().completion

    def said(self, completion: Completion) -> Said:
        """What the model said, told from the tools that it called."""
        text = self.opening + completion.text
        return read(text, self.tools) if self.tools else Said(text)


class Showing:
    """A text that is shown while it grows, as far as it is certain to be no call of a tool."""

    def __init__(self, call: Call) -> None:
        self.shown = ""
        self._text = call.opening
        self._is_whole = not call.tools

    def push(self, piece: str) -> str:
        """What may be shown now that this piece has come."""
        self._text += piece
        certain = self._text if self._is_whole else shown(self._text)
        new, self.shown = certain[len(self.shown) :], certain
        return new
