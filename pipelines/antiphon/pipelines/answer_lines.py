"""The lines of an answer: the best line with what it introduces, and further lines that add something to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from antiphon.pipelines.fitted_prompt import FittedPrompt
from antiphon.pipelines.quotes import LineKind, Quote
from antiphon.retrieval import Passage

MAX_BLOCK_LINES = 12
"""Maximum number of lines of a list, table or code block that are quoted with the line that introduces it."""

MAX_CODE_LINES = 6
"""A code block of at most as many lines is quoted as a whole."""

MAX_LIST_ITEMS, MAX_LIST_WORDS = 3, 60
"""A list of at most as many items and words is quoted as a whole."""

_MAX_TITLE_WORDS = 12
_MAX_SHARED_WORDS = (
    0.7  # of the words of the shorter line; lines that share more say the same, or contradict each other
)
_WORD = re.compile(r"[^\W\d_]{2,}")
_NUMBER = re.compile(r"\d+(?:[.,_]\d+)*")
_COUNTS = re.compile(
    r"\b(?:two|three|four|five|six|seven|eight|nine|ten|several|following|these|below|as follows)\b", re.IGNORECASE
)
_MARKUP = "*_` "
_NO_TITLE = re.compile(r"[:\d]|[.!?…。！？।॥؟۔።]['\"”’»)\]`*_]*$")


@dataclass(frozen=True, slots=True)
class CandidateLine:
    """A quotable line: the index of its prompt, its quote, and its relevance in nats."""

    prompt_index: int
    quote: Quote
    relevance: float

    @property
    def text(self) -> str:
        """The line as the model writes it."""
        return self.quote.line


def answer_lines(
    best: CandidateLine, others: Iterable[CandidateLine], prompts: Sequence[FittedPrompt], *, max_further: int
) -> list[CandidateLine]:
    """Return the lines that an answer quotes: the best one, further ones, and what each of them introduces.

    No line is repeated. A further line is left out if it repeats or contradicts an earlier one, or introduces one that
    is already quoted. Lines of one paragraph, list, table or code block are in reading order.

    Args:
        best: the best line.
        others: other lines that are good enough, best first.
        prompts: one prompt for each passage.
        max_further: the maximum number of further lines, not counting what they introduce.
    """
    quoted = {each.quote: each for each in _with_block(best, prompts)}
    further = 0
    for line in others:
        if further == max_further:
            break
        added = {each.quote: each for each in _with_block(line, prompts)}
        if quoted.keys().isdisjoint(added) and all(_adds_to(line, each, prompts) for each in quoted.values()):
            quoted |= added
            further += 1
    return _in_reading_order([*quoted.values()])


def _with_block(line: CandidateLine, prompts: Sequence[FittedPrompt]) -> list[CandidateLine]:
    """Return a line with the lines of the block that it introduces, or with the short code block that it is in."""
    own = prompts[line.prompt_index].prompt.quotes
    return [CandidateLine(line.prompt_index, quote, line.relevance) for quote in quoted_block(line.quote, own)]


def quoted_block(quote: Quote, quotes: Sequence[Quote]) -> list[Quote]:
    """Return the lines that are quoted if one is selected: all of a short code block, or a line and what it introduces.

    A line that ends with a colon, or a title, introduces the list, code block or table below it, or the next sentence.
    A short list is quoted as a whole, with the line that introduces it, and a later sentence of a list item or of a
    definition with the first one.

    Args:
        quote: the selected line.
        quotes: the quotable lines of its passage, in reading order.
    """
    if quote.kind is LineKind.CODE:
        code = [each for each in quotes if each.kind is LineKind.CODE and each.block == quote.block]
        return code if len(code) <= MAX_CODE_LINES else [quote]
    place = next(at for at, each in enumerate(quotes) if each == quote and each.start == quote.start)
    if quote.kind is LineKind.ITEM and (whole := _short_list(quote, quotes)):
        return whole
    if quote.kind is LineKind.ITEM and (head := _item_head(quotes[: place + 1])):
        return [head, quote]
    following = quotes[place + 1 :]
    if not following or following[0].block > quote.block + 1 or not _introduces(quote, quotes):
        return [quote]
    return [quote, *[*_introduced(quote, following)][:MAX_BLOCK_LINES]]


def _short_list(quote: Quote, quotes: Sequence[Quote]) -> list[Quote]:
    """Return the list of an item with the line that introduces it, or nothing if it has none or is long."""
    items = [each for each in quotes if each.kind is LineKind.ITEM and each.block == quote.block]
    first = next(place for place, each in enumerate(quotes) if each is items[0])
    lead = [each for each in quotes[:first] if each.block == quote.block - 1][-1:]
    words = sum(len(each.sentence.split()) for each in items)
    if len(items) > MAX_LIST_ITEMS or words > MAX_LIST_WORDS or not lead or not _introduces(lead[0], quotes):
        return []
    return [*lead, *items]


def _item_head(quotes: Sequence[Quote]) -> Quote | None:
    """Return the first sentence of the list item in which the last line is a later one."""
    *before, last = quotes
    own = [each for each in before if each.kind is LineKind.ITEM and each.block == last.block]
    head = next((each for each in reversed(own) if each.level < last.level), None)
    return head if head is not None and head.level == last.level - 1 and last.is_continuation else None


def _introduces(quote: Quote, quotes: Sequence[Quote]) -> bool:
    text = quote.sentence.rstrip(_MARKUP)
    if text.endswith((":", "：")):
        return True
    if following := [each for each in quotes if each.block == quote.block + 1][:1]:
        is_last = quote is [each for each in quotes if each.block == quote.block][-1]
        if is_last and following[0].kind is LineKind.ITEM and _COUNTS.search(text):
            return True
    is_alone = sum(each.block == quote.block for each in quotes) == 1
    is_title = not _NO_TITLE.search(text) and len(text.split()) <= _MAX_TITLE_WORDS
    return quote.kind is LineKind.SENTENCE and is_alone and is_title


def _introduced(quote: Quote, following: Sequence[Quote]) -> Iterator[Quote]:
    first = following[0]
    if first.kind in (LineKind.CODE, LineKind.ROW):
        yield from takewhile(lambda each: each.block == first.block, following)
    elif first.kind is LineKind.ITEM:
        if quote.kind is not LineKind.ITEM or first.level > quote.level:
            yield from takewhile(lambda each: each.block == first.block and each.level >= first.level, following)
    else:
        yield first


def _adds_to(line: CandidateLine, quoted: CandidateLine, prompts: Sequence[FittedPrompt]) -> bool:
    """Return whether a line adds something: neither the words of a quoted one nor other numbers from elsewhere."""
    own, others = _words(line.quote.sentence), _words(quoted.quote.sentence)
    if len(own & others) >= _MAX_SHARED_WORDS * max(min(len(own), len(others)), 1):
        return False
    numbers, known = (set(_NUMBER.findall(each.quote.sentence)) for each in (line, quoted))
    is_elsewhere = _section(line, prompts) != _section(quoted, prompts)
    return not (is_elsewhere and numbers and known and numbers.isdisjoint(known))


def _words(sentence: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(sentence)}


def _section(line: CandidateLine, prompts: Sequence[FittedPrompt]) -> tuple[str, str]:
    passage: Passage = prompts[line.prompt_index].passages[0]
    return passage.source, str(passage.metadata.get("title") or "")


def _in_reading_order(lines: Sequence[CandidateLine]) -> list[CandidateLine]:
    """Return the lines with those of each block in reading order, at the places that lines of the block have."""
    blocks: dict[tuple[int, int], list[CandidateLine]] = {}
    for line in lines:
        blocks.setdefault((line.prompt_index, line.quote.block), []).append(line)
    ordered = {block: iter(sorted(own, key=lambda each: each.quote.start)) for block, own in blocks.items()}
    return [next(ordered[line.prompt_index, line.quote.block]) for line in lines]
