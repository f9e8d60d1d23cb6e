"""The demo command: index documents that ship with the package, ask, cite, and compare with plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import DEFAULT_MODEL, MODEL_HELP, EngineOption
from antiphon.pipelines.cli.preparation import index_documents, load_language_model, show_index
from antiphon.pipelines.data.demo import DOCUMENTS, demo_documents, demo_index_folder
from antiphon.pipelines.models.bundled import BUNDLED, STOPS
from antiphon.pipelines.rendering.sanitize import sanitize
from antiphon.pipelines.rendering.tables import ResultTable, result_table

if TYPE_CHECKING:
    from antiphon.pipelines.answer import Answer
    from antiphon.pipelines.rag import Rag

QUESTIONS = (
    "Is Python named after the snake?",
    "list.pop(0) is slow, what should I use for a FIFO?",
    "Can I use a list as a key in a dict?",
)
MAX_NEW_TOKENS = 100


def demo(
    model: Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)] = DEFAULT_MODEL,
    engine: EngineOption = "auto",
) -> None:
    """Index the bundled documents, answer questions about them, and compare with plain decoding."""
    console.quiet_libraries()
    is_same = run_demo(model, engine=engine)
    if model in BUNDLED and not is_same:
        raise typer.Exit(1)


def run_demo(
    model: str,
    *,
    paths: Sequence[Path] | None = None,
    folder: Path | None = None,
    questions: Sequence[str] = QUESTIONS,
    engine: str = "auto",
) -> bool:
    """Index, ask, cite and compare on the terminal; return whether drafted and plain outputs were identical.

    Args:
        model: Name, folder or hub name of the model.
        paths: Documents; default the bundled ones.
        folder: Folder of the index; default in the user's cache. Passages embedded before are not embedded again.
        questions: Questions to ask.
        engine: Engine that runs the model.
    """
    console.out.rule("Index")
    folder = folder or demo_index_folder()
    show_index(index_documents(paths or demo_documents(), folder, embedder="minilm"))
    rag = _open(folder, model, engine)
    console.out.rule(f"Ask {model}")
    if model in BUNDLED:
        console.out.print(NOTES[model] + _LARGER, style="dim")
    stop = STOPS.get(model, ())
    drafted = [_ask(rag, question, stop) for question in questions]
    console.out.rule("The same questions, decoded plainly")
    plain = [_decode_plainly(rag, question, stop) for question in questions]
    return compare(drafted, plain)


NOTES = {
    "reader": "reader is a small extractive model: it answers with sentences of the passages, each after the number of "
    "its passage, or says that the passages do not say. It runs everywhere and makes mistakes. ",
    "smollm2": "smollm2 is a small language model: it runs everywhere and makes mistakes. ",
}
_LARGER = "Try a larger one with: antiphon demo --model some/hub-model"


def _open(folder: Path, model: str, engine: str) -> Rag:
    import torch

    from antiphon.pipelines.rag import Rag
    from antiphon.retrieval import Retriever

    # Outputs are guaranteed to be identical in float32 only; a large model may not fit into memory in float32.
    dtype: Any = torch.float32 if model in BUNDLED else "auto"
    language_model = load_language_model(model, dtype=dtype, engine=engine)
    with console.err.status("Warming up"):  # the first forward passes test what the model supports
        language_model.generate("Warm up.", references=["Warm up. Warm up."], max_new_tokens=4)
    return Rag(Retriever.open(folder), language_model)


def _ask(rag: Rag, question: str, stop: Sequence[str]) -> Answer:
    console.out.print()
    console.out.print(Text(sanitize(question), style="bold"))
    answer = console.show_stream(rag.stream(question, max_new_tokens=MAX_NEW_TOKENS, stop=stop))
    console.show_citations(answer, root=DOCUMENTS)
    console.show_cost(answer)
    return answer


def _decode_plainly(rag: Rag, question: str, stop: Sequence[str]) -> Answer:
    with console.err.status(f"Decoding plainly: {question}"):
        return rag.ask(question, drafter="nothing", max_new_tokens=MAX_NEW_TOKENS, stop=stop)


def compare(drafted: Sequence[Answer], plain: Sequence[Answer]) -> bool:
    """Print what drafting saved, per question and in total; return whether the outputs were identical.

    Args:
        drafted: Answers decoded with drafts.
        plain: Answers to the same questions without drafts.
    """
    console.out.print(comparison_table(drafted, plain))
    is_same = all(one.text == other.text for one, other in zip(drafted, plain, strict=True))
    steps, plain_steps = (sum(answer.steps.steps for answer in answers) for answers in (drafted, plain))
    seconds, plain_seconds = (sum(answer.steps.seconds for answer in answers) for answers in (drafted, plain))
    console.out.print(
        f"{'The text is identical' if is_same else 'The text differs'}. Drafting took {steps} steps instead of "
        f"{plain_steps}, {plain_steps / steps:.1f} times fewer, and {seconds:.1f} s instead of {plain_seconds:.1f} s, "
        f"{plain_seconds / seconds:.1f} times faster."
    )
    return is_same


COLUMNS = {
    "question": "question",
    "tokens": "tokens",
    "steps": "steps",
    "plain_steps": "plain",
    "seconds": "time",
    "plain_seconds": "plain",
    "is_same": "same",
}


def comparison_table(drafted: Sequence[Answer], plain: Sequence[Answer]) -> ResultTable:
    """Return a table of tokens, steps and seconds per question, drafted and plain.

    Args:
        drafted: Answers decoded with drafts.
        plain: Answers to the same questions without drafts.
    """
    pairs = zip(drafted, plain, strict=True)
    return result_table("", COLUMNS, [_comparison(one, other) for one, other in pairs], is_open=True)


def _comparison(one: Answer, other: Answer) -> dict[str, Any]:
    return {
        "question": one.question,
        "tokens": one.usage.completion_tokens,
        "steps": one.steps.steps,
        "plain_steps": other.steps.steps,
        "seconds": f"{one.steps.seconds:.1f}",
        "plain_seconds": f"{other.steps.seconds:.1f}",
        "is_same": one.text == other.text,
    }
