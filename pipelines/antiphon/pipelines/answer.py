"""The answer to a question, complete or as a stream: text, citations, passages, cost, and the trace of its decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from functools import cached_property
from itertools import groupby
from pathlib import PurePath
from time import perf_counter
from typing import TYPE_CHECKING, Any

from antiphon.accel import Completion, Origin, Summary, Usage
from antiphon.accel.decoding.stats import FinishReason
from antiphon.accel.text.completion import Piece, TextStream
from antiphon.pipelines.citations import Citation, NearestSentence, nearest_sentences
from antiphon.pipelines.extractive_model import EXTRACTIVE
from antiphon.pipelines.prompt import is_refusal
from antiphon.pipelines.question import Question
from antiphon.pipelines.rendering.segments import DecodingStep, cost_line, counted, outdated_note
from antiphon.pipelines.request_plan import RequestPlan
from antiphon.pipelines.tracing import Span, end_generation
from antiphon.retrieval import Passage

if TYPE_CHECKING:
    from rich.console import RenderableType

ENDED_IN_THINKING = (
    "There is no answer, because the text ended while the model was thinking: raise max_new_tokens, limit the thinking "
    "with max_thinking_tokens, or turn it off with thinking=False."
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question.

    A notebook and ``rich.print(answer)`` show the answer with each citation in the colour of its
    passage.

    Attributes:
        text: the answer, without markers of passages that do not exist.
        citations: the spans of the text that quote a passage verbatim, and the text's markers.
        passages: the passages of the prompt, best first.
        finish_reason: "stop", "length" or "cancelled".
        origins: for each token, the forward pass that emitted it and whether it was drafted.
        reasoning: the model's thinking before the answer, without citations; empty if there was no
            thinking.
        ended_in_thinking: whether generation ended before the thinking did, so that there is no answer.
        model: the name of the language model; "extractive" if the answer was quoted without a
            language model.
        seconds: the time from the question to the end of the answer; 0 if it was not measured.
    """

    question: str
    text: str
    citations: tuple[Citation, ...]
    passages: tuple[Passage, ...]
    usage: Usage
    steps: Summary
    finish_reason: FinishReason
    origins: tuple[Origin, ...] = ()
    reasoning: str = ""
    ended_in_thinking: bool = False
    model: str = ""
    seconds: float = 0.0

    @classmethod
    def from_completion(cls, question: str, completion: Completion, **others: Any) -> Answer:
        """Return the answer with the text, cost and thinking of a completion.

        Args:
            **others: the answer's other attributes, such as its passages and citations.
        """
        shared = {field.name for field in fields(cls)} & {field.name for field in fields(completion)}
        return cls(question=question, **{name: getattr(completion, name) for name in shared}, **others)

    @property
    def is_refusal(self) -> bool:
        """Whether the answer says that the passages do not answer the question (a refusal)."""
        return not self.ended_in_thinking and is_refusal(self.text)

    @property
    def nearest(self) -> tuple[NearestSentence, ...]:
        """For a refusal: of each passage, the sentence that shares most words with the question. Otherwise empty."""
        return nearest_sentences(self.question, self.passages) if self.is_refusal else ()

    @property
    def outdated(self) -> str:
        """A line that names the cited files that were changed or deleted after they were indexed; else empty.

        For a refusal, the line names such files of ``nearest`` instead.
        """
        return outdated_note(self.citations or self.nearest)

    @property
    def decoding_trace(self) -> DecodingTrace:
        """The text that each forward pass added, for display."""
        return DecodingTrace(self.text, self.origins)

    @property
    def caption(self) -> str:
        """One line with the model and the cost of the answer."""
        if self.model == EXTRACTIVE or self.usage.response_prefix_tokens:
            sources = len({citation.passage for citation in self.citations})
            searched = f"Searched {counted(len(self.passages), 'passage')}"
            done = searched if self.is_refusal else f"Quoted from {counted(sources, 'passage')}"
        else:
            done = f"Written by {PurePath(self.model).name}" if self.model else "Written"
        done += f" in {self.seconds:.1f} s" if self.seconds else ""
        is_written = self.usage.completion_tokens > bool(self.usage.response_prefix_tokens)  # a quote has an end token
        cost = f"; {cost_line(self.usage, self.steps, self.finish_reason)}" if is_written else ""
        return done + cost + (f". {ENDED_IN_THINKING}" if self.ended_in_thinking else "")

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        from antiphon.pipelines.rendering.html import answer_html

        return answer_html(self.question, self.text, self.citations, self.passages, self.caption, self.nearest)

    def __rich__(self) -> RenderableType:
        from antiphon.pipelines.rendering.terminal import answer_text

        return answer_text(self.text, self.citations, self.caption, self.nearest)

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values; an origin is (start, end, step, is_drafted)."""
        passages = [{**asdict(passage), "metadata": dict(passage.metadata)} for passage in self.passages]
        return {
            "question": self.question,
            "text": self.text,
            "is_refusal": self.is_refusal,
            "citations": [asdict(citation) for citation in self.citations],
            "passages": passages,
            "nearest": [asdict(each) for each in self.nearest],
            "outdated": self.outdated,
            "usage": {**asdict(self.usage), "total_tokens": self.usage.total_tokens},
            "steps": self.steps.as_dict(),
            "finish_reason": self.finish_reason,
            "origins": [astuple(origin) for origin in self.origins],
            "reasoning": self.reasoning,
            "ended_in_thinking": self.ended_in_thinking,
            "model": self.model,
            "seconds": round(self.seconds, 3),
        }


class AnswerStream(TextStream):
    """A streaming answer: iterate over pieces of text; ``answer`` is complete afterwards.

    Text is generated only while the caller waits for a piece.

    Args:
        on_end: called with the answer when the stream has ended or is closed, but not after an error.
        spans: OpenTelemetry spans of the answer and of its generation; both end with the stream.
        started: the `perf_counter` time in seconds at which the question was asked.
    """

    def __init__(
        self,
        question: Question,
        plan: RequestPlan,
        stream: TextStream,
        on_end: Sequence[Callable[[Answer], None]],
        spans: tuple[Span, Span],
        started: float,
    ) -> None:
        self.question = question
        self.plan = plan
        self._spans: tuple[Span, Span] | None = spans
        self._stream = stream
        self._on_end = on_end
        self._started = started
        self._seconds = 0.0

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The passages that the answer may cite, available at once."""
        return self.plan.passages

    @cached_property
    def quote(self) -> Citation | None:
        """The quote that answers the question best; None if no quote is likely to answer it.

        The quote is not part of the answer. The first read of this property starts the search,
        which takes some tenths of a second. To show the quote during the prefill, read the property
        in a thread. The quote is always None for models that quote and for small models.
        """
        return None if self.plan.quote is None else self.plan.quote()

    def next_piece(self) -> Piece | None:
        """Return the next piece of thinking or answer; None at the end."""
        try:
            piece = self._stream.next_piece()
        except Exception as error:
            self._on_end = ()  # a failed generation is not an answer
            for span in reversed(self._spans or ()):
                span.end(error)
            self._spans = None
            raise
        if piece is None:
            self._end()
        return piece

    def close(self) -> None:
        """Stop generating; ``answer`` then has the text generated so far."""
        self._stream.close()
        self._end()

    def _end(self) -> None:
        self._seconds = self._seconds or perf_counter() - self._started
        callbacks, self._on_end = self._on_end, ()
        spans, self._spans = self._spans, None
        if spans is not None and spans[0].is_recorded:
            root, chat = spans
            end_generation(chat, self.completion, is_answer=True)
            with root.activated(), Span("cite") as span:
                span.set({"antiphon.citations": len(self.answer.citations)})
            root.end()
        for callback in callbacks:
            callback(self.answer)

    @property
    def completion(self) -> Completion:
        """The completion of the language model, once the stream has ended or is closed.

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
        return Answer.from_completion(
            self.question.text,
            completion,
            passages=self.passages,
            citations=self.plan.cite(completion.text),
            model=self.plan.model,
            seconds=self._seconds,
        )


@dataclass(frozen=True, slots=True)
class DecodingTrace:
    """A text with the origins of its tokens.

    A notebook and ``rich.print`` show, for each forward pass, the accepted draft tokens and the model's own token, as
    in Chen et al., *Faster In-Context Learning for LLMs via N-Gram Trie Speculative Decoding*.
    """

    text: str
    origins: Sequence[Origin]

    @property
    def steps(self) -> list[DecodingStep]:
        """The text that each forward pass added; passes that added only special tokens are left out."""
        steps = [self._step(step, list(origins)) for step, origins in groupby(self.origins, lambda each: each.step)]
        return [step for step in steps if step.drafted or step.own]

    @property
    def num_drafted(self) -> int:
        """The number of accepted draft tokens."""
        return sum(origin.is_drafted for origin in self.origins)

    @property
    def num_steps(self) -> int:
        """The number of forward passes."""
        return self.origins[-1].step + 1 if self.origins else 0

    @property
    def caption(self) -> str:
        """The counts in one sentence."""
        return f"{len(self.origins)} tokens in {self.num_steps} steps; {self.num_drafted} of them were drafted."

    def _step(self, step: int, origins: Sequence[Origin]) -> DecodingStep:
        drafted, own = (
            "".join(self.text[each.start : each.end] for each in origins if each.is_drafted is is_drafted)
            for is_drafted in (True, False)
        )
        return DecodingStep(step + 1, len(origins), drafted, own)

    def _repr_html_(self) -> str:
        from antiphon.pipelines.rendering.html import trace_html

        return trace_html(self.steps, self.caption)

    def __rich__(self) -> RenderableType:
        from antiphon.pipelines.rendering.terminal import trace_text

        return trace_text(self.steps, self.caption)
