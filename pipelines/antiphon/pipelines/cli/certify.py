"""The command `antiphon certify`: answers with drafts and verifies the answer in one plain forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import (
    DEFAULT_MODEL,
    DRAFTER_HELP,
    MODEL_HELP,
    Bita,
    Device,
    MaxNewTokens,
    NumDraftTokens,
    Precision,
    Window,
)
from antiphon.pipelines.cli.preparation import dtype_named, load_language_model
from antiphon.pipelines.models.bundled import STOPS
from antiphon.pipelines.rendering.sanitize import sanitize_json

if TYPE_CHECKING:
    from antiphon.accel import Certificate, LanguageModel, Stream
    from antiphon.accel.text.messages import Message
    from antiphon.pipelines.answer import AnswerStream
    from antiphon.pipelines.rag import Searcher


def certify(
    prompt: Annotated[str, typer.Argument(help="A question, or without --index a text to continue.")],
    index: Annotated[Path | None, typer.Option("--index", "-i", help="The folder that `antiphon index` made.")] = None,
    model: Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)] = DEFAULT_MODEL,
    k: Annotated[int, typer.Option("--k", "-k", help="Number of passages in the prompt.")] = 5,
    max_new_tokens: MaxNewTokens = 256,
    dtype: Precision = "auto",
    ulps: Annotated[
        float | None,
        typer.Option(help="Maximum allowed regret in ulps.", show_default="2 in half precision, 64 in float32"),
    ] = None,
    drafter: Annotated[str, typer.Option(help=DRAFTER_HELP)] = "blend",
    bita: Bita = None,
    window: Window = None,
    num_draft_tokens: NumDraftTokens = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Make the output independent of the drafts, in half precision too.")
    ] = False,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print text and certificate as one JSON object.")] = False,
) -> None:
    """Answer with drafts, then verify in one plain forward pass that every token is the model's greedy choice.

    For an answer of `reader` from an index, everything after its first line is verified. The exit code is 1 if
    the certificate does not hold.
    """
    from antiphon.pipelines.models.drafters import resolve_drafter, window_size
    from antiphon.pipelines.question_text import check_text
    from antiphon.retrieval import Retriever

    check_text(prompt)
    console.quiet_libraries()
    factory = resolve_drafter(drafter, bita=bita, window=window_size(window) if window else None)
    retriever = None if index is None else Retriever.open(index, device=device)
    settings = {
        "dtype": dtype_named(dtype),
        "num_draft_tokens": num_draft_tokens,
        "drafter": factory,
        "deterministic": deterministic,
    }
    language_model = load_language_model(model, device=device, **settings)
    if factory == "auto":
        console.show_choice(language_model)
    show = (lambda stream: None) if as_json else console.show_pieces
    options = {"max_new_tokens": max_new_tokens, "stop": STOPS.get(model, ())}
    proof = proven(prompt, language_model, retriever, k=k, ulps=ulps, show=show, **options)
    if as_json:
        typer.echo(sanitize_json(proof.as_dict()))
    else:
        console.show_certificate(proof.certificate, proof.word)
    if not proof.certificate.holds:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class Proof:
    """An output with its certificate.

    Attributes:
        text: The output.
        certificate: Its certificate.
        word: Text of the token with the largest regret.
    """

    text: str
    certificate: Certificate
    word: str

    def as_dict(self) -> dict[str, Any]:
        """Return all values, for JSON."""
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
    """Answer a question from an index, or continue a text without one, and certify the output.

    Args:
        prompt: Question or text.
        language_model: Model that answers.
        searcher: Finds passages; None to continue ``prompt``.
        k: Number of passages.
        ulps: Maximum allowed regret.
        show: Displays the stream while it grows.
        **generation: Options of `LanguageModel.stream`; must be greedy.

    Raises:
        ValueError: an option is out of range, nothing was found or emitted, or the answer was sampled.
    """
    from antiphon.pipelines.rag import Rag

    stream: AnswerStream | Stream
    said: str | tuple[Message, ...] = prompt
    if searcher is None:
        stream = language_model.stream(prompt, **generation)
    else:
        stream = Rag(searcher, language_model, k=k).stream(prompt, **generation)
        said = stream.plan.prompt.content
    show(stream)
    completion = stream.to_end().completion
    certificate = language_model.certify(said, completion, ulps=ulps)
    return Proof(completion.text, certificate, str(language_model.tokenizer.decode([certificate.token])))
