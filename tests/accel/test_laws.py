"""Properties of parts without a model, for any input: verification, trimming, merging, stopping."""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteria, StoppingCriteriaList

from antiphon.accel.decoding.tokens import RequestOutput, TokenHistory
from antiphon.accel.drafting.draft import ROOT, Draft, merge, trim
from antiphon.accel.drafting.verify import verify
from tests.accel.oracles import spelled

many = settings(max_examples=150, deadline=None, derandomize=True)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """Draw a draft of three tokens, with duplicate siblings and chances in any order."""
    rows = draw(st.integers(0, 14))
    parents = [draw(st.integers(ROOT, row - 1)) for row in range(rows)]
    tokens = draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows))
    chances = draw(st.lists(st.sampled_from([0.1, 0.5, 1.0]), min_size=rows, max_size=rows))
    return Draft(tuple(tokens), tuple(parents), tuple(chances))


def paths(draft: Draft) -> set[tuple[int, ...]]:
    return {tuple(spelled(draft, row)) for row in range(len(draft))}


texts = st.lists(st.integers(0, 2), min_size=20, max_size=20)


@many
@given(drafts(), texts, st.integers(1, 20))
def test_verification_emits_the_longest_drafted_prefix_of_the_text_and_one_more_token(
    draft: Draft, text: list[int], end: int
) -> None:
    said: list[int] = []

    def commit(token: int) -> bool:
        said.append(token)
        return len(said) == end

    accepted = verify(draft, lambda row: text[len(said)], commit)
    drafted = paths(draft) | {()}
    longest = max(length for length in range(len(text) + 1) if tuple(text[:length]) in drafted)
    assert list(accepted.tokens) == said == text[: min(longest + 1, end)]
    assert len(accepted.path) == len(accepted.tokens) - 1
    assert accepted.path == () or spelled(draft, accepted.path[-1]) == said[:-1]


@many
@given(drafts(), st.integers(0, 15), st.integers(0, 8))
def test_a_trimmed_draft_is_a_part_within_bounds_and_trimming_is_idempotent(
    draft: Draft, rows: int, depth: int
) -> None:
    kept = trim(draft, rows, depth)
    shallow = sum(level <= depth for level in draft.depths)
    assert len(kept) == min(rows, shallow)
    assert max(kept.depths, default=0) <= depth
    assert paths(kept) <= paths(draft)
    assert trim(kept, rows, depth) == kept


@many
@given(drafts(), drafts(), drafts())
def test_merging_is_associative_and_makes_siblings_distinct(one: Draft, two: Draft, three: Draft) -> None:
    whole = merge(one, two, three)
    assert merge(merge(one, two), three) == whole == merge(one, merge(two, three))
    assert len(set(zip(whole.parents, whole.tokens, strict=True))) == len(whole) == len(paths(whole))


class Rule(StoppingCriteria):
    """Return a stopping criterion made from a predicate on the ids."""

    def __init__(self, rule: Callable[[list[int]], bool]) -> None:
        self.rule = rule

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        return torch.tensor([self.rule(input_ids[0].tolist())])


@many
@given(texts, st.integers(2, 25), st.lists(st.integers(0, 2), max_size=2), st.integers(2, 9))
def test_generation_stops_at_the_first_token_that_any_rule_ends_with_its_reason(
    text: list[int], limit: int, ends: list[int], modulus: int
) -> None:
    criteria = StoppingCriteriaList([MaxLengthCriteria(limit), Rule(lambda ids: sum(ids) % modulus == modulus - 1)])
    if ends:
        criteria.append(EosTokenCriteria(ends))
    stop = RequestOutput(TokenHistory(torch.tensor([[1]])), criteria, lambda: None)
    said: list[int] = []
    for token in text:
        said.append(token)
        ended = token in ends or (1 + sum(said)) % modulus == modulus - 1
        is_full = 1 + len(said) >= limit
        assert stop.remaining_tokens == limit - len(said)
        assert stop.commit(token) == (ended or is_full)
        assert stop.finish == ("stop" if ended else "length" if is_full else None)
        if stop.finish:
            break
    assert stop.history.tokens == [1, *said]
