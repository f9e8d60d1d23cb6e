"""From passages, select the lines that answer a question, or decide that no line does.

Two sentence encoders score the relevance of each line to the question (see `relevance`); no
language model is needed. docs/answers.md describes the signals and what each of them contributes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from math import inf
from statistics import fmean

from antiphon.accel.text.messages import Message
from antiphon.pipelines.citations import Citation, cite, cited_span
from antiphon.pipelines.question import Question, column_stems, content_stems, repeats_question
from antiphon.pipelines.quotes import Quote, lines_of, quotable_lines
from antiphon.pipelines.relevance import LineScores, line_scores
from antiphon.retrieval import Passage
from antiphon.retrieval.document_role import asks_about_changes, is_record, name_words

MIN_SCORE = -0.1
"""Minimum score of the best line, else the answer is a refusal. The score is the line's relevance
in nats plus the share of the question's words that the passages contain."""

MAX_BLOCK_LINES = 12
"""Maximum number of lines of a list, table or code block that are quoted with the line that introduces it."""

MAX_LINES = 3
"""Maximum number of lines that are quoted, not counting the blocks that they introduce."""

_YES_OR_NO = re.compile(r"[*_]*(?:\w+:\s+)?(?:yes|no|ja|nein|oui|non|sí)\b[\w ,’']{0,20}[.!]?[*_]*", re.IGNORECASE)
_MAX_GAP = 2.0  # maximum gap in nats between the relevance of the best line and of a quoted line
_SAME_SECTION = 1.0  # added, for a follow-up, to the relevance of lines in sections that the latest answer quotes
_NAMED_ROW = 3.5  # added to the relevance of `named_rows`
_RECORD_PENALTY = 1.0  # subtracted from the relevance of lines of changelogs, issue lists and tests


def select_lines(
    question: Question,
    passages: Sequence[Passage],
    *,
    history: Sequence[Message] = (),
    max_tokens: float = inf,
    count_tokens: Callable[[str], int] = len,
    scores: Callable[[str, Sequence[Passage]], LineScores] = line_scores,
    min_score: float = MIN_SCORE,
    max_lines: int = MAX_LINES,
) -> tuple[tuple[Passage, ...], tuple[Quote, ...]]:
    """Select the most relevant lines, or none if the passages probably do not contain an answer.

    Args:
        passages: the retrieved passages; at least one.
        history: the earlier messages, oldest first.
        max_tokens: maximum length of the answer in tokens. Lines that would exceed it are left out,
            except the first line.
        scores: scores the quotable lines of passages.
        max_lines: maximum number of lines, not counting the blocks that the lines introduce.

    Returns:
        The passages of the selected lines, and the lines. The passage of the best line comes first;
        each line has the number of its passage. If no line is selected: the one passage that comes
        nearest to an answer, and no lines.
    """
    lines = quotable_lines(passages)
    if question.is_small_talk:
        return (passages[0],), ()
    # 1. Score all lines.
    relevance = _relevance(question, passages, lines, history, scores)
    ranked = sorted(relevance, key=lambda quote: -relevance[quote])
    # 2. Refuse if even the best line is not relevant enough.
    if not ranked:
        return (passages[0],), ()
    best = relevance[ranked[0]]
    if best + known_share(question.complete, passages) < min_score:
        return (passages[ranked[0].number - 1],), ()
    # 3. Take the best lines, each with the block that it introduces, while they fit.
    selected, count, used = dict[str, Quote](), 0, 0
    asked = content_stems(question.complete)
    for quote in takewhile(lambda quote: relevance[quote] >= best - _MAX_GAP, ranked):
        own = lines[quote.number - 1]
        found, before = answer_lines(question, quote, own), own[max(own.index(quote) - 1, 0)]
        follows = not quote.is_row and before.sentence in selected
        is_about = not count or not asked or asked & content_stems(quote.sentence) or follows
        if count < max_lines and found and is_about and not any(line.sentence in selected for line in found[:1]):
            count += 1
            for line in found:
                used += count_tokens(line.line) + 1
                if not selected or used <= max_tokens:
                    selected.setdefault(line.sentence, line)
    if not selected:  # the question itself is at the end of its passage, and nothing else answers it
        return (passages[ranked[0].number - 1],), ()
    # 4. Quote the lines of each passage in reading order.
    numbers = list(dict.fromkeys(quote.number for quote in selected.values()))
    ordered = sorted(selected.values(), key=lambda quote: (numbers.index(quote.number), quote.start))
    renumbered = (replace(quote, number=numbers.index(quote.number) + 1) for quote in ordered)
    return tuple(passages[number - 1] for number in numbers), tuple(renumbered)


def _relevance(
    question: Question,
    passages: Sequence[Passage],
    lines: Sequence[Sequence[Quote]],
    history: Sequence[Message],
    scores: Callable[[str, Sequence[Passage]], LineScores],
) -> dict[Quote, float]:
    """Return the relevance of every line to the question.

    For a follow-up, this is the mean of the relevance to the complete form and to the original
    wording. Lines in sections that the latest answer cites get a bonus.
    """
    forms = [scores(form, passages) for form in dict.fromkeys((question.complete, question.text))]
    answers = [str(message.get("content") or "") for message in history if message.get("role") == "assistant"]
    cited = cite(answers[-1], passages) if answers and question.is_follow_up else ()
    sections = [(passage.source, passage.metadata.get("title")) for passage in passages]
    continued = {sections[citation.passage - 1] for citation in cited}
    rows = named_rows(question.complete, passages)
    penalty = 0.0 if asks_about_changes(question.complete) else _RECORD_PENALTY
    relevance = dict[Quote, float]()
    for place, (passage, quotes) in enumerate(zip(passages, lines, strict=True)):
        gain = _SAME_SECTION * (sections[place] in continued) - penalty * is_record(passage)
        for quote, *values in zip(quotes, *(form[place] for form in forms), strict=True):
            relevance.setdefault(quote, fmean(values) + gain + _NAMED_ROW * (quote in rows))
    return relevance


def named_rows(question: str, passages: Sequence[Passage]) -> set[Quote]:
    """Return the table rows that a question names. Their tables have a column that the question asks for.

    A row is named by a word of the question that no other row has, such as "Papyrus" in "How much do we pay Papyrus?".
    """
    columns, rows, headers = column_stems(question), dict[Quote, set[str]](), set[str]()
    for lines in lines_of(passages):
        own = [line for line in lines if line.is_row]
        cells = (cell.partition(": ") for line in own for cell in line.sentence.split("; "))
        header = content_stems(" ".join(name for name, colon, _ in cells if colon))
        headers |= header
        if columns & header:
            rows |= {line: content_stems(line.sentence) for line in own if line.is_quotable}
    asked = content_stems(question) - headers
    words = Counter(word for own in {row.sentence: rows[row] for row in rows}.values() for word in own & asked)
    return {row for row, own in rows.items() if any(words[word] == 1 for word in own & asked)}


def best_quote(question: Question, passages: Sequence[Passage], history: Sequence[Message] = ()) -> Citation | None:
    """Return the line that answers a question best, with the block that it introduces; None if no line does.

    Args:
        history: the earlier messages, oldest first.
    """
    [passage, *_], lines = select_lines(question, passages, history=history, max_lines=1)
    if not lines:
        return None
    rows = {"text": "\n".join(line.sentence for line in lines)} if any(line.is_row for line in lines) else {}
    return cited_span(passage, passages.index(passage) + 1, lines[0].start, lines[-1].end, **rows)


def answer_lines(question: Question, quote: Quote, quotes: Sequence[Quote]) -> list[Quote]:
    """Return the lines to quote for a selected line: the line, its block, and a "Yes." or "No." before it.

    If the line repeats the question, the next line is quoted instead; without a next line, the
    result is empty.

    Args:
        quotes: The lines of the passage.
    """
    place = quotes.index(quote)
    if repeats_question(quote.sentence, question.complete) or repeats_question(quote.sentence, question.text):
        place += 1
    if place == len(quotes):
        return []
    quote, before, after = quotes[place], quotes[place - 1 : place], quotes[place + 1 : place + 2]
    if _YES_OR_NO.fullmatch(quote.sentence) and after and after[0].block == quote.block:
        return [quote, *after]
    is_answered = before and before[0].block == quote.block and _YES_OR_NO.fullmatch(before[0].sentence)
    return [*(before if is_answered else ()), *quoted_block(quote, quotes)]


def quoted_block(quote: Quote, quotes: Sequence[Quote]) -> list[Quote]:
    """Return a line. If the line ends with a colon, also return the list, table, code block or line that follows."""
    below = [each for each in quotes if each.start > quote.start and each.block <= quote.block + 1]
    if not below or not quote.sentence.rstrip("*_` ").endswith((":", "：")):
        return [quote]
    if not below[0].is_listed or below[0].block == quote.block:
        return [quote, below[0]]
    return [quote, *below[:MAX_BLOCK_LINES]]


def known_share(question: str, passages: Sequence[Passage]) -> float:
    """Return the share of a question's content words that are in the passages, their headings or their file names."""
    words = content_stems(question)
    texts = (f"{name_words(each.source)}\n{each.text_with_headings}" for each in passages)
    known = set[str]().union(*map(content_stems, texts))
    return len(words & known) / len(words) if words else 1.0
