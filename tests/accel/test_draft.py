"""Draft trees: validation, trimming, merging, ordering and verification."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, chain, merge, most_likely_chain, trim
from antiphon.accel.drafting.tree import reorder_depth_first
from antiphon.accel.drafting.verify import verify


def random_tree(seed: int, rows: int = 12) -> Draft:
    chance = random.Random(seed)
    parents = [chance.randint(ROOT, row - 1) for row in range(rows)]
    chances: list[float] = []
    for parent in parents:
        chances.append((1.0 if parent == ROOT else chances[parent]) * chance.random())
    return Draft(tuple(chance.randrange(5) for _ in range(rows)), tuple(parents), tuple(chances))


def paths(draft: Draft) -> set[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*(() if parent == ROOT else found[parent]), token))
    return set(found)


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
