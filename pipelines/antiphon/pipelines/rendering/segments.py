"""A text cut where its citations begin and end, and the words for where they stand. Knows no medium."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.pipelines.answer import Answer
    from antiphon.pipelines.citations import Citation
    from antiphon.pipelines.nearest import Nearest
    from antiphon.retrieval import Passage

NOT_CITED = "No six words of the answer stand verbatim in a passage."
CITED = "Stands verbatim in"
READ = "Passages that were read"
NEAREST = "The documents that were searched come nearest in"


CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}
CONTROLS |= dict.fromkeys(range(127, 160), "\N{REPLACEMENT CHARACTER}")
"""What is shown for control characters, with which a text could steer a terminal; see `str.translate`."""


def cited(answer: Answer) -> Iterator[tuple[str, Citation | None]]:
    """The answer's text in pieces, each with the citation that it is, if it is one."""
    return _cut(answer.text, ((each.start, each.end, each) for each in answer.citations))


def quoted(passage: Passage, number: int, answer: Answer) -> Iterator[tuple[str, Citation | None]]:
    """The text of passage ``number`` in pieces, each with the citation that repeats it, if one does."""
    spans = sorted(
        (each.source_start - passage.start, each.source_end - passage.start, index)
        for index, each in enumerate(answer.citations)
        if each.passage == number
    )
    return _cut(passage.text, ((start, end, answer.citations[index]) for start, end, index in spans))


def shown_source(source: str, root: Path | None = None) -> str:
    """The source below ``root``, by default the working directory, or as it is."""
    path, root = Path(source), root or Path.cwd()
    return str(path.relative_to(root)) if path.is_relative_to(root) else source


def place_of(sentence: Nearest, root: Path | None = None) -> str:
    """Where a sentence stands: the source and the characters."""
    return f"{shown_source(sentence.source, root)}, characters {sentence.start}-{sentence.end}"


def place(citation: Citation, root: Path | None = None) -> str:
    """Where the words of a citation stand: the source and the characters."""
    return f"{shown_source(citation.source, root)}, characters {citation.source_start}-{citation.source_end}"


def cost(answer: Answer) -> str:
    """One line: what the answer cost."""
    steps, prompt = answer.steps, answer.usage.prompt_tokens
    unfinished = "; cut off by max_new_tokens" if answer.finish_reason == "length" else ""
    read = f", {steps.prefill_tokens} of them read" if 0 < steps.prefill_tokens < prompt else ""
    return (
        f"{answer.usage.completion_tokens} tokens in {steps.steps} steps, {steps.tokens_per_step:.2f} tokens per step, "
        f"{steps.seconds:.1f} s after a prompt of {prompt} tokens{read}{unfinished}"
    )


def _cut(text: str, spans: Iterable[tuple[int, int, Citation]]) -> Iterator[tuple[str, Citation | None]]:
    """Ascending spans with what is between them; where two overlap, the earlier has what they share."""
    done = 0
    for start, end, citation in spans:
        if end <= done:
            continue
        if start > done:
            yield text[done:start], None
        yield text[max(start, done) : end], citation
        done = end
    if done < len(text):
        yield text[done:], None
