"""The main job on documents that ship with the package: index, ask, cite, and compare with plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platformdirs import user_cache_dir
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from antiphon.pipelines import console
from antiphon.pipelines.embedded import EMBEDDED, STOPS
from antiphon.pipelines.preparation import index_documents, load_language_model, show_index

if TYPE_CHECKING:
    from antiphon.pipelines.answer import Answer
    from antiphon.pipelines.rag import Rag

QUESTIONS = (
    "Is Python named after the snake?",
    "list.pop(0) is slow, what should I use for a FIFO?",
    "Can my company sell a product that contains Python without paying anyone?",
)
MAX_NEW_TOKENS = 100

_DOCUMENTS = Path(__file__).parent / "data" / "python-docs"


def documents() -> list[Path]:
    """The text files of the Python documentation that ship with the package, without their licence."""
    return sorted(path for path in _DOCUMENTS.glob("*.txt") if path.name != "LICENSE.txt")


def index_folder() -> Path:
    """Where the index of these files is kept, in the user's cache."""
    return Path(user_cache_dir("antiphon")) / "demo-index"


def run(
    model: str,
    *,
    paths: Sequence[Path] | None = None,
    folder: Path | None = None,
    questions: Sequence[str] = QUESTIONS,
) -> bool:
    """Index, ask, cite and compare, all on the terminal; whether drafted and plain texts were the same.

    ``paths`` are the shipped documents unless others are given; the index is kept in ``folder``, by default in the
    user's cache, and what it already embedded is not embedded again.
    """
    console.out.rule("Index")
    folder = folder or index_folder()
    show_index(index_documents(paths or documents(), folder, embedder="minilm"))
    rag = _open(folder, model)
    console.out.rule(f"Ask {model}")
    if model in EMBEDDED:
        console.out.print(NOTES[model] + _LARGER, style="dim")
    stop = STOPS.get(model, ())
    drafted = [_ask(rag, question, stop) for question in questions]
    console.out.rule("The same questions, decoded plainly")
    plain = [_decode_plainly(rag, question, stop) for question in questions]
    return compare(drafted, plain)


NOTES = {
    "reader": "reader is a small language model that was taught to quote: it answers with sentences of the passages, "
    "each after the number of its passage, or says that the passages do not say. It runs everywhere, and can err. ",
    "smollm2": "smollm2 is a small language model: it runs everywhere, and its answers are those of a small model. ",
}
_LARGER = "A larger one takes the same path: antiphon demo --model some/hub-model"


def _open(folder: Path, model: str) -> Rag:
    import torch

    from antiphon.pipelines.rag import Rag
    from antiphon.retrieval import Retriever

    # Only in float32 is the text of any two ways to decode sure to be the same; a large model may not fit in it.
    dtype: Any = torch.float32 if model in EMBEDDED else "auto"
    language_model = load_language_model(model, dtype=dtype)
    with console.err.status("Warming up"):  # the first forwards find out what the model can verify, and are slower
        language_model.generate("Warm up.", references=["Warm up. Warm up."], max_new_tokens=4)
    return Rag(Retriever.open(folder), language_model)


def _ask(rag: Rag, question: str, stop: Sequence[str]) -> Answer:
    console.out.print()
    console.out.print(Text(question, style="bold"))
    answer = console.show_stream(rag.stream(question, max_new_tokens=MAX_NEW_TOKENS, stop=stop))
    console.show_citations(answer, root=_DOCUMENTS)
    console.show_cost(answer)
    return answer


def _decode_plainly(rag: Rag, question: str, stop: Sequence[str]) -> Answer:
    with console.err.status(f"Decoding plainly: {question}"):
        return rag.ask(question, drafter="nothing", max_new_tokens=MAX_NEW_TOKENS, stop=stop)


def compare(drafted: Sequence[Answer], plain: Sequence[Answer]) -> bool:
    """Show what drafting saved, question by question and in all; whether the texts were the same."""
    table = Table("question", "tokens", "steps", "plain", "time", "plain", "same", box=SIMPLE)
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[1:6]:
        column.justify = "right"
    for one, other in zip(drafted, plain, strict=True):
        table.add_row(*_row(one, other))
    console.out.print(table)
    is_same = all(one.text == other.text for one, other in zip(drafted, plain, strict=True))
    steps, plain_steps = (sum(answer.steps.steps for answer in answers) for answers in (drafted, plain))
    seconds, plain_seconds = (sum(answer.steps.seconds for answer in answers) for answers in (drafted, plain))
    console.out.print(
        f"{'The text is identical' if is_same else 'The text differs'}. Drafting took {steps} steps instead of "
        f"{plain_steps}, {plain_steps / steps:.1f} times fewer, and {seconds:.1f} s instead of {plain_seconds:.1f} s, "
        f"{plain_seconds / seconds:.1f} times faster."
    )
    return is_same


def _row(one: Answer, other: Answer) -> tuple[str, ...]:
    return (
        one.question,
        str(one.usage.completion_tokens),
        str(one.steps.steps),
        str(other.steps.steps),
        f"{one.steps.seconds:.1f}",
        f"{other.steps.seconds:.1f}",
        "yes" if one.text == other.text else "no",
    )
