"""The drafts of one request: what it reads of its references, and how much of its chains is accepted."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from antiphon.accel.drafting.calibration import Calibration
from antiphon.accel.drafting.drafters.suffix_match import SuffixMatch
from antiphon.integrations.vllm.admission import Sources
from antiphon.integrations.vllm.request_drafts import RequestDrafts
from antiphon.pipelines.benchmark.samples import load_samples

PASSAGE = tuple(range(100, 130))


def begun(prompt: Sequence[int], references: Sequence[Sequence[int]], k: int = 8) -> RequestDrafts:
    make = partial(SuffixMatch, depth=k, common=0, recycling=False, branching=False)
    return RequestDrafts(None, make, tuple(prompt), Sources(tuple(map(tuple, references))), Calibration())


def test_a_passage_that_stands_in_the_prompt_with_other_tokens_at_its_ends_counts_once() -> None:
    """As a tokenizer has it: " The" in the prompt is "The" alone, and its full stop ends a paragraph there."""
    prompt = [1, 50, *PASSAGE[1:-1], 60, 110, 70, 110, 71, 110]
    alone = begun(prompt, [PASSAGE]).offer(16)
    assert alone.chances == begun(prompt, []).offer(16).chances
    assert alone.chances != begun(prompt, [PASSAGE[:13]]).offer(16).chances, "a short one is read"


def test_a_passage_of_which_the_prompt_has_only_a_part_is_read() -> None:
    drafts = begun([1, *PASSAGE[3:12], 9, PASSAGE[20]], [PASSAGE])
    assert drafts.offer(16).draft.tokens == PASSAGE[21:29]


def lookup(context: Sequence[int], least: int, most: int, k: int) -> Sequence[int]:
    """Prompt lookup as vLLM does it: what follows the first of the longest matches of the last tokens."""
    for length in range(most, least - 1, -1):
        for start in range(len(context) - length):
            if context[start : start + length] == context[-length:]:
                return context[start + length : start + length + k]
    return ()


def accepted(answers: Sequence[tuple[list[int], list[int]]], drafting: Callable[[list[int]], _Drafting]) -> int:
    """How many drafted tokens of these prompts and answers are right, if nothing else is drafted."""
    total = 0
    for prompt, answer in answers:
        draft, read = drafting(prompt)
        context, steps = [*prompt, answer[0]], 1
        read(answer[:1])
        while rest := answer[len(context) - len(prompt) :]:
            kept = 0
            for guess, token in zip(draft(context), rest[:-1], strict=False):
                if guess != token:
                    break
                kept += 1
            read(rest[: kept + 1])
            context += rest[: kept + 1]
            steps += 1
        total += len(answer) - steps
    return total


_Drafting = tuple[Callable[[list[int]], Sequence[int]], Callable[[Sequence[int]], None]]


def ours(k: int, prompt: list[int]) -> _Drafting:
    drafts = begun(prompt, [], k)
    return lambda _: drafts.take(drafts.offer(k).draft, k), drafts.read


def theirs(least: int, most: int, k: int, prompt: list[int]) -> _Drafting:
    return lambda context: lookup(context, least, most, k), lambda _: None


@pytest.fixture(scope="module")
def answers() -> list[tuple[list[int], list[int]]]:
    """Recorded prompts and answers, with a number for every word and every sign."""
    numbers: dict[str, int] = {}

    def numbered(text: str) -> list[int]:
        return [numbers.setdefault(word, len(numbers)) for word in re.findall(r"\w+|\W", text)]

    samples = load_samples("python-docs", limit=12)
    return [(numbered(sample.prompt), numbered(sample.response)) for sample in samples]


@pytest.mark.parametrize("k", [3, 5, 8])
@pytest.mark.parametrize(("least", "most"), [(2, 5), (1, 3)])
def test_a_chain_is_accepted_further_than_prompt_lookups_of_as_many_tokens(
    answers: list[tuple[list[int], list[int]]], least: int, most: int, k: int
) -> None:
    assert accepted(answers, partial(ours, k)) >= accepted(answers, partial(theirs, least, most, k)) > 0
