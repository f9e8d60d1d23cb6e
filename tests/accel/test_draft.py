"""Draft trees: validation, trimming, merging, ordering, masks, verification and stopping."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteria, StoppingCriteriaList

from antiphon.accel.decoding.tokens import RequestOutput, TokenHistory
from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, chain, merge, most_likely_chain, trim
from antiphon.accel.drafting.tree import AttentionSpan, Tree, build_tree, reorder_depth_first
from antiphon.accel.drafting.verify import verify
from antiphon.accel.engines.torch.attention import attention_mask
from tests.accel.oracles import spelled


def random_tree(seed: int, rows: int = 12) -> Draft:
    chance = random.Random(seed)
    parents = [chance.randint(ROOT, row - 1) for row in range(rows)]
    chances: list[float] = []
    for parent in parents:
        chances.append((1.0 if parent == ROOT else chances[parent]) * chance.random())
    return Draft(tuple(chance.randrange(5) for _ in range(rows)), tuple(parents), tuple(chances))


def paths(draft: Draft) -> set[tuple[int, ...]]:
    return {tuple(spelled(draft, row)) for row in range(len(draft))}


@pytest.mark.parametrize(
    ("tokens", "parents", "chances", "probes", "message"),
    [
        ((1, 2), (-1,), (1.0, 1.0), 0, "2 tokens, 1 parents and 2 chances"),
        ((1,), (0,), (1.0,), 0, "Row 0 has parent 0"),
        ((1, 2), (-1, -2), (1.0, 1.0), 0, "Row 1 has parent -2"),
        ((1,), (-1,), (1.0,), 2, "num_probes is 2"),
    ],
)
def test_invalid_drafts_are_refused(
    tokens: tuple[int, ...], parents: tuple[int, ...], chances: tuple[float, ...], probes: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Draft(tokens, parents, chances, probes)


def test_the_first_of_rows_with_equal_paths_has_the_children_of_all() -> None:
    draft = Draft((7, 7, 8, 9, 9, 6), (-1, -1, 0, 1, 0, 4), (1.0,) * 6)
    assert draft.children == {ROOT: {7: 0}, 0: {8: 2, 9: 3}, 3: {6: 5}}
    assert draft.depths == [1, 1, 2, 2, 2, 3]
    assert most_likely_chain(draft) == chain([7, 8])


def test_a_probe_with_a_token_can_be_accepted_and_a_mask_token_cannot() -> None:
    draft = Draft((7, 8, -1), (-1, 0, 1), (1.0, 0.1, 0.1), num_probes=2)
    chosen = iter([7, 8, 9])
    assert verify(draft, lambda row: next(chosen), lambda token: False) == Accepted((0, 1), (7, 8, 9))
    assert most_likely_chain(draft) == chain([7])


WITH_PROBES = Draft((1, 2, 6, 7, 8, 9), (-1, 0, -1, 2, 0, 1), (0.9, 0.2, 0.1, 0.1, 0.1, 0.1), num_probes=4)
"""Candidates 1 and 2, a chain; probes 6 and 7 below the root, 8 below 1, 9 below 2."""


@given(seed=st.integers(0, 2**32 - 1))
def test_a_trimmed_draft_with_probes_fits_and_keeps_all_probes_of_its_rows(seed: int) -> None:
    draft = replace(random_tree(seed, 14), tokens=tuple(range(14)), num_probes=7)  # token n is row n
    for rows in range(len(draft) + 1):
        kept = trim(draft, rows, depth=14)
        assert len(kept) <= rows
        assert paths(kept) <= paths(draft)
        assert trim(kept, rows, depth=14) == kept
        candidates = [ROOT, *kept.tokens[: kept.num_candidates]]
        probes = {probe for row in candidates for probe in draft.probes_below.get(row, ())}
        assert set(kept.tokens[kept.num_candidates :]) == (probes if kept.num_probes else set())


@given(seed=st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("probes", [0, 4])
def test_depth_first_order_keeps_all_paths_and_puts_first_children_behind_their_parent(seed: int, probes: int) -> None:
    draft = replace(random_tree(seed, 14), tokens=tuple(range(14)), num_probes=probes)  # token n is row n
    if any(parent >= draft.num_candidates for parent in draft.parents[draft.num_candidates :]):
        draft = replace(draft, parents=(*draft.parents[: draft.num_candidates], *(ROOT,) * probes))
    ordered = reorder_depth_first(draft)
    assert paths(ordered) == paths(draft)
    assert dict(zip(ordered.tokens, ordered.chances, strict=True)) == dict(
        zip(draft.tokens, draft.chances, strict=True)
    )
    assert ordered.tokens[ordered.num_candidates :] == draft.tokens[draft.num_candidates :]
    for row, parent in enumerate(ordered.parents[: ordered.num_candidates]):
        first = ordered.parents.index(parent) == row
        assert not first or row == parent + 1
    assert reorder_depth_first(ordered) == ordered


def test_the_most_likely_chain_follows_the_best_child_from_the_root() -> None:
    draft = Draft((1, 2, 3, 4, 5), (-1, -1, 1, 1, 3), (0.4, 0.6, 0.2, 0.4, 0.1))
    assert most_likely_chain(draft) == Draft((2, 4, 5), (-1, 0, 1), (0.6, 0.4, 0.1))
    assert most_likely_chain(EMPTY) == EMPTY


def test_merged_probes_follow_all_candidates_and_stay_separate_rows() -> None:
    other = Draft((1, 3, 6), (-1, -1, 1), (0.4, 0.3, 0.2), num_probes=2)
    assert merge(WITH_PROBES, other) == Draft(
        (1, 2, 6, 7, 8, 9, 3, 6), (-1, 0, -1, 2, 0, 1, -1, 6), (0.9, 0.2, 0.1, 0.1, 0.1, 0.1, 0.3, 0.2), num_probes=6
    )
    assert merge(chain([6]), WITH_PROBES).num_probes == WITH_PROBES.num_probes
    assert paths(merge(other, WITH_PROBES)) == paths(other) | paths(WITH_PROBES)


def test_a_merged_row_has_the_highest_chance_of_its_copies_in_any_order() -> None:
    likely, unlikely = chain([5, 6], [0.9, 0.5]), chain([5, 6], [0.3, 0.2])
    assert merge(likely, unlikely) == merge(unlikely, likely) == likely


def seen(tree: Tree, span: AttentionSpan, row: int, *, length: int, offset: int, padding: int) -> set[int]:
    """Return the columns that a row attends to, computed from the definition for each column separately."""
    here = length - padding + int(tree.depths[row])
    columns = [slot - padding for slot in range(offset, length)]
    visible = [position >= 0 for position in columns] + tree.ancestor_mask[row].tolist()
    columns += (length - padding + tree.depths).tolist()
    return {
        index
        for index, (position, allowed) in enumerate(zip(columns, visible, strict=True))
        if allowed
        and (span.window is None or here - position < span.window)
        and (span.chunk is None or here // span.chunk == position // span.chunk)
    }


@pytest.mark.parametrize(
    "span", [AttentionSpan(), AttentionSpan(window=4), AttentionSpan(chunk=5), AttentionSpan(window=1)]
)
@pytest.mark.parametrize(("offset", "padding"), [(0, 0), (0, 3), (6, 0), (6, 2), (2, 4)])
def test_masks_measure_windows_and_chunks_in_positions(span: AttentionSpan, offset: int, padding: int) -> None:
    tree = build_tree(2, [ROOT, 0, ROOT, 2, 1])
    sees = attention_mask(tree, span, length=11, offset=offset, padding=padding)
    assert sees.shape == (7, 11 - offset + 7)
    for row in range(7):
        expected = seen(tree, span, row, length=11, offset=offset, padding=padding)
        assert set(sees[row].nonzero().flatten().tolist()) == expected


def test_padding_rows_attend_to_nothing_and_no_row_attends_to_them() -> None:
    tree = build_tree(2, (ROOT, 0), padding_rows=3)
    assert tree.depths.tolist() == [0, 1, 2, 3, 1, 1, 1]
    bare = attention_mask(build_tree(2, (ROOT, 0)), AttentionSpan(window=5), length=9, offset=4, padding=1)
    padded = attention_mask(tree, AttentionSpan(window=5), length=9, offset=4, padding=1)
    assert torch.equal(padded[:4, : bare.shape[1]], bare)
    assert not padded[4:].any()
    assert not padded[:, bare.shape[1] :].any()


many = settings(max_examples=150, deadline=None, derandomize=True)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """Draw a draft of three tokens, with duplicate siblings and chances in any order."""
    rows = draw(st.integers(0, 14))
    parents = [draw(st.integers(ROOT, row - 1)) for row in range(rows)]
    tokens = draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows))
    chances = draw(st.lists(st.sampled_from([0.1, 0.5, 1.0]), min_size=rows, max_size=rows))
    return Draft(tuple(tokens), tuple(parents), tuple(chances))


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
