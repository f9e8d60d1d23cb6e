"""An answer: the text, where its words stand, and what it cost; whole, or while it grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from antiphon.accel import Completion, Stream, Summary, Usage
from antiphon.accel.stats import FinishReason
from antiphon.pipelines.citations import Citation, cite
from antiphon.pipelines.prompt import Prompt
from antiphon.retrieval import Passage


@dataclass(frozen=True, slots=True)
class Answer:
    """What a language model said to a question and the passages it was given, best first.

    ``citations`` are the spans of ``text`` that stand verbatim in a passage. ``finish_reason`` is "stop", "length" or
    "cancelled"; ``usage`` counts tokens, ``steps`` sums up the forwards.
    """

    question: str
    text: str
    citations: tuple[Citation, ...]
    passages: tuple[Passage, ...]
    usage: Usage
    steps: Summary
    finish_reason: FinishReason

    def as_dict(self) -> dict[str, Any]:
        """Everything, as values that JSON can hold."""
        passages = [{**asdict(passage), "metadata": dict(passage.metadata)} for passage in self.passages]
        return {
            "question": self.question,
            "text": self.text,
            "citations": [asdict(citation) for citation in self.citations],
            "passages": passages,
            "usage": {**asdict(self.usage), "total_tokens": self.usage.total_tokens},
            "steps": self.steps.as_dict(),
            "finish_reason": self.finish_reason,
        }


class AnswerStream:
    """An answer while it grows: iterate over its pieces; afterwards ``answer`` is whole.

    ``passages`` and the ``prompt`` made of them are there at once. Nothing is generated between pieces, or after the
    stream is closed. When it has ended, however that was, each of ``then`` is called once with what was said.
    """

    def __init__(
        self,
        question: str,
        passages: tuple[Passage, ...],
        prompt: Prompt,
        stream: Stream,
        then: Sequence[Callable[[Completion], None]] = (),
    ) -> None:
        self.question = question
        self.passages = passages
        self.prompt = prompt
        self._stream = stream
        self._then = then

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            return next(self._stream)
        except StopIteration:
            self._end()
            raise

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop generating; the answer is what was given out until now."""
        self._stream.close()
        self._end()

    def _end(self) -> None:
        then, self._then = self._then, ()
        for call in then:
            call(self.completion)

    @property
    def completion(self) -> Completion:
        """What the language model said, with its tokens, once the stream has ended or is closed.

        Raises:
            RuntimeError: the stream has not ended yet.
        """
        return self._stream.completion

    @property
    def answer(self) -> Answer:
        """The answer, once the stream has ended or is closed.

        Raises:
            RuntimeError: the stream has not ended yet.
        """
        completion = self.completion
        return Answer(
            question=self.question,
            text=completion.text,
            citations=cite(completion.text, self.passages),
            passages=self.passages,
            usage=completion.usage,
            steps=completion.steps,
            finish_reason=completion.finish_reason,
        )
