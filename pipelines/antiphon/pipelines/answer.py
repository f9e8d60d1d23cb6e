"""An answer: its text, its citations and what it cost; complete, or streaming."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import TYPE_CHECKING, Any

from antiphon.accel import Completion, Origin, Summary, Usage
from antiphon.accel.decoding.stats import FinishReason
from antiphon.accel.text.completion import Pieces
from antiphon.pipelines.citations import Citation, cite
from antiphon.pipelines.drafting import Drafting
from antiphon.pipelines.nearest import NearestSentence, nearest_sentences
from antiphon.pipelines.prompt import Prompt, is_refusal
from antiphon.pipelines.rendering.segments import cost_line
from antiphon.retrieval import Passage

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True)
class Answer:
    """What a language model said to a question and the passages it was given, best first.

    ``citations`` are the spans of ``text`` that stand verbatim in a passage. ``finish_reason`` is "stop", "length" or
    "cancelled"; ``usage`` counts tokens, ``steps`` sums up the forwards, and ``origins`` says how each token came
    to be.

    An answer shows itself: in a notebook, in the terminal (``rich.print(answer)``) and as Markdown, its citations in
    the colours and under the numbers of their passages. ``drafting`` shows how it was decoded.
    """

    question: str
    text: str
    citations: tuple[Citation, ...]
    passages: tuple[Passage, ...]
    usage: Usage
    steps: Summary
    finish_reason: FinishReason
    origins: tuple[Origin, ...] = ()

    @property
    def is_declined(self) -> bool:
        """Whether the answer is that the passages do not say."""
        return is_refusal(self.text)

    @property
    def nearest(self) -> tuple[NearestSentence, ...]:
        """Of an answer that is a refusal, the sentence of each passage that fits the question best; else none."""
        return nearest_sentences(self.question, self.passages) if self.is_declined else ()

    @property
    def drafting(self) -> Drafting:
        """The same text as it was decoded, step by step, to be looked at."""
        return Drafting(self.text, self.origins)

    @property
    def caption(self) -> str:
        """What the answer cost, in one line."""
        return cost_line(self.usage, self.steps, self.finish_reason)

    def to_markdown(self) -> str:
        """The text with its citations as footnotes, everything in it escaped."""
        from antiphon.pipelines.rendering.markdown import answer_markdown

        return answer_markdown(self.text, self.citations, self.caption, self.nearest)

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def _repr_html_(self) -> str:
        from antiphon.pipelines.rendering.html import answer_html

        return answer_html(self.question, self.text, self.citations, self.passages, self.caption, self.nearest)

    def __rich__(self) -> RenderableType:
        from antiphon.pipelines.rendering.terminal import answer_text

        return answer_text(self.text, self.citations, self.caption, self.nearest)

    def as_dict(self) -> dict[str, Any]:
        """Everything, as values that JSON can hold; an origin is (start, end, step, whether a draft had guessed it)."""
        passages = [{**asdict(passage), "metadata": dict(passage.metadata)} for passage in self.passages]
        return {
            "question": self.question,
            "text": self.text,
            "citations": [asdict(citation) for citation in self.citations],
            "passages": passages,
            "nearest": [asdict(each) for each in self.nearest],
            "usage": {**asdict(self.usage), "total_tokens": self.usage.total_tokens},
            "steps": self.steps.as_dict(),
            "finish_reason": self.finish_reason,
            "origins": [astuple(origin) for origin in self.origins],
        }


class AnswerStream(Pieces):
    """An answer while it grows: iterate over its pieces; afterwards ``answer`` is whole.

    ``passages`` and the ``prompt`` made of them are there at once. Nothing is generated between pieces, or after the
    stream is closed. When it has ended or is closed, each of ``then`` is called once with what was said; after
    an error in generation none is.
    """

    def __init__(
        self,
        question: str,
        passages: tuple[Passage, ...],
        prompt: Prompt,
        stream: Pieces,
        then: Sequence[Callable[[Completion], None]] = (),
    ) -> None:
        self.question = question
        self.passages = passages
        self.prompt = prompt
        self._stream = stream
        self._then = then

    def __next__(self) -> str:
        try:
            return next(self._stream)
        except StopIteration:
            self._end()
            raise
        except Exception:
            self._then = ()  # what was said until it failed is no answer
            raise

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
            origins=completion.origins,
        )
