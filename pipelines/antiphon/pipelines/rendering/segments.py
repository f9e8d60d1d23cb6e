"""A text cut where its citations begin and end, and the words for where they stand. Knows no medium."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.accel import Summary, Usage
    from antiphon.pipelines.citations import Citation
    from antiphon.pipelines.nearest import NearestSentence
    from antiphon.retrieval import Passage

NOT_CITED = "No six words of the answer stand verbatim in a passage."
CITED = "Stands verbatim in"
READ = "Passages that were read"
NEAREST = "The documents that were searched come nearest in"


def cited_segments(text: str, citations: Iterable[Citation]) -> Iterator[tuple[str, Citation | None]]:
    """An answer's text in pieces, each with the citation that it is, if it is one."""
    return _cut(text, ((each.start, each.end, each) for each in citations))


def quoted_segments(
    passage: Passage, number: int, citations: Sequence[Citation]
) -> Iterator[tuple[str, Citation | None]]:
    """The text of passage ``number`` in pieces, each with the citation that repeats it, if one does."""
    spans = sorted(
        (each.source_start - passage.start, each.source_end - passage.start, index)
        for index, each in enumerate(citations)
        if each.passage == number
    )
    return _cut(passage.text, ((start, end, citations[index]) for start, end, index in spans))


def shown_source(source: str, root: Path | None = None) -> str:
    """The source below ``root``, by default the working directory, or as it is."""
    path, root = Path(source), root or Path.cwd()
    return str(path.relative_to(root)) if path.is_relative_to(root) else source


def sentence_place(sentence: NearestSentence, root: Path | None = None) -> str:
    """Where a sentence stands: the source and the characters."""
    return f"{shown_source(sentence.source, root)}, characters {sentence.start}-{sentence.end}"


def citation_place(citation: Citation, root: Path | None = None) -> str:
    """Where the words of a citation stand: the source and the characters."""
    return f"{shown_source(citation.source, root)}, characters {citation.source_start}-{citation.source_end}"


def cost_line(usage: Usage, steps: Summary, finish_reason: str) -> str:
    """One line: what an answer cost."""
    prompt = usage.prompt_tokens
    unfinished = "; cut off by max_new_tokens" if finish_reason == "length" else ""
    read = f", {steps.prefill_tokens} of them read" if 0 < steps.prefill_tokens < prompt else ""
    told = f" in {steps.steps} steps, {steps.tokens_per_step:.2f} tokens per step" if steps.steps else ""
    said = f"; said by weights of {steps.weights}, another model" if steps.weights else ""
    return (
        f"{usage.completion_tokens} tokens{told}, "
        f"{steps.seconds:.1f} s after a prompt of {prompt} tokens{read}{unfinished}{said}"
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
