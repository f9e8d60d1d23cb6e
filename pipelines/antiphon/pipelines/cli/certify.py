"""A greedy answer and its certificate: generated with drafts, proven in one plain forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from antiphon.accel import Certificate, LanguageModel, Stream
from antiphon.pipelines.answer import AnswerStream
from antiphon.pipelines.rag import Rag, Searcher

if TYPE_CHECKING:
    from antiphon.accel.text.messages import Message


@dataclass(frozen=True, slots=True)
class Proof:
    """What a model said, its certificate, and how the token of the largest regret reads."""

    text: str
    certificate: Certificate
    word: str

    def as_dict(self) -> dict[str, Any]:
        """Everything, as values that JSON can hold."""
        return {"text": self.text, "word": self.word, **self.certificate.as_dict()}


def proven(
    prompt: str,
    language_model: LanguageModel,
    searcher: Searcher | None = None,
    *,
    k: int = 5,
    ulps: float | None = None,
    show: Callable[[AnswerStream | Stream], None],
    **generation: Any,
) -> Proof:
    """Answer a question from what a search finds, or continue a text where there is none, and certify what was said.

    ``show`` may read the stream while it grows. ``generation`` goes to `LanguageModel.stream`; it has to be greedy.

    Raises:
        ValueError: an option is out of range, nothing was found or said, or the answer was sampled.
    """
    stream: AnswerStream | Stream
    said: str | tuple[Message, ...] = prompt
    if searcher is None:
        stream = language_model.stream(prompt, **generation)
    else:
        stream = Rag(searcher, language_model, k=k).stream(prompt, **generation)
        said = stream.prompt.content
    show(stream)
    completion = stream.to_end().completion
    certificate = language_model.certify(said, completion, ulps=ulps)
    return Proof(completion.text, certificate, str(language_model.tokenizer.decode([certificate.token])))
