"""The words of drafting."""

import random
from dataclasses import replace

import pytest

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, chain, merge, most_likely_chain, take_rows, trim
from antiphon.accel.drafting.tree import reorder_depth_first, take_rows_depth_first
from antiphon.accel.drafting.verify import verify


def bush(seed: int, rows: int = 12) -> Draft:
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
def test_an_impossible_draft_is_refused(
    tokens: tuple[int, ...], parents: tuple[int, ...], chances: tuple[float, ...], probes: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Draft(tokens, parents, chances, probes)


def test_of_rows_with_equal_paths_the_first_counts_and_has_the_children_of_all() -> None:
    draft = Draft((7, 7, 8, 9, 9, 6), (-1, -1, 0, 1, 0, 4), (1.0,) * 6)
    assert draft.children == {ROOT: {7: 0}, 0: {8: 2, 9: 3}, 3: {6: 5}}
    assert draft.depths == [1, 1, 2, 2, 2, 3]
    assert most_likely_chain(draft) == chain([7, 8])


def test_a_probe_may_be_accepted_where_it_holds_a_token_and_never_where_it_holds_none() -> None:
    draft = Draft((7, 8, -1), (-1, 0, 1), (1.0, 0.1, 0.1), num_probes=2)
    chosen = iter([7, 8, 9])
    assert verify(draft, lambda row: next(chosen), lambda token: False) == Accepted((0, 1), (7, 8, 9))
    assert most_likely_chain(draft) == chain([7])


@pytest.mark.parametrize("seed", range(20))
def test_trimming_keeps_the_likeliest_rows_and_whole_paths(seed: int) -> None:
    draft = bush(seed)
    for rows in range(len(draft) + 2):
        kept = trim(draft, rows, depth=9)
        assert len(kept) == min(rows, len(draft))
        assert sorted(kept.chances) == sorted(draft.chances, reverse=True)[: len(kept)][::-1]
        assert paths(kept) <= paths(draft)


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_trimming_by_depth_drops_exactly_what_is_deeper(depth: int) -> None:
    draft = bush(3)
    kept = trim(draft, 99, depth)
    assert max(kept.depths, default=0) <= depth
    assert paths(kept) == {path for path in paths(draft) if len(path) <= depth}


ASKING = Draft((1, 2, 6, 7, 8, 9), (-1, 0, -1, 2, 0, 1), (0.9, 0.2, 0.1, 0.1, 0.1, 0.1), num_probes=4)
"""Candidates 1 and 2, a chain; probes 6 and 7 below the root, 8 below 1, 9 below 2."""


def test_a_candidate_is_trimmed_with_the_probes_below_it() -> None:
    assert ASKING.probes_below == {ROOT: [2, 3], 0: [4], 1: [5]}
    assert trim(ASKING, 6, 3) == ASKING
    for rows in (4, 5):
        assert trim(ASKING, rows, 3) == Draft((1, 6, 7, 8), (-1, -1, 1, 0), (0.9, 0.1, 0.1, 0.1), num_probes=3)
    for rows in (2, 3):
        assert trim(ASKING, rows, 3) == Draft((6, 7), (-1, 0), (0.1, 0.1), num_probes=2)
    assert trim(ASKING, 1, 3) == Draft((1,), (-1,), (0.9,))


def test_probes_go_together_where_one_of_them_is_too_deep() -> None:
    assert trim(ASKING, 6, 2) == Draft((1, 2), (-1, 0), (0.9, 0.2))
    assert trim(ASKING, 6, 1) == Draft((1,), (-1,), (0.9,))
    assert trim(ASKING, 6, 2, probe_depth=3) == ASKING
    assert trim(ASKING, 6, 1, probe_depth=2) == Draft((1, 6, 7, 8), (-1, -1, 1, 0), (0.9, 0.1, 0.1, 0.1), num_probes=3)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_trimmed_of_a_draft_with_probes_fits_and_lacks_no_probe_below_what_is_kept(seed: int) -> None:
    draft = replace(bush(seed, 14), tokens=tuple(range(14)), num_probes=7)  # a token is its own row
    for rows in range(len(draft) + 1):
        kept = trim(draft, rows, depth=14)
        assert len(kept) <= rows
        assert paths(kept) <= paths(draft)
        assert trim(kept, rows, depth=14) == kept
        candidates = [ROOT, *kept.tokens[: kept.num_candidates]]
        asked = {probe for row in candidates for probe in draft.probes_below.get(row, ())}
        assert set(kept.tokens[kept.num_candidates :]) == (asked if kept.num_probes else set())


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("probes", [0, 4])
def test_depth_first_every_path_stays_and_the_first_children_stand_side_by_side(seed: int, probes: int) -> None:
    draft = replace(bush(seed, 14), tokens=tuple(range(14)), num_probes=probes)  # a token is its own row
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


@pytest.mark.parametrize("seed", range(20))
def test_a_part_in_that_order_is_cut_and_ordered_at_once(seed: int) -> None:
    draft = bush(seed, 14)
    kept = [row for row in range(14) if draft.chances[row] > 0.1]
    kept = [row for row in kept if draft.parents[row] in (ROOT, *kept)]
    assert take_rows_depth_first(draft, kept) == reorder_depth_first(take_rows(draft, kept))
    asking = replace(draft, num_probes=3, parents=(*draft.parents[:11], ROOT, 11, ROOT))
    kept = [*(row for row in kept if row < 11), 11, 12, 13]
    assert take_rows_depth_first(asking, kept) == reorder_depth_first(take_rows(asking, kept))


def test_a_draft_made_without_checks_is_the_same_and_knows_its_shape_by_itself() -> None:
    checked = Draft((7, 8, 9), (ROOT, 0, ROOT), (0.5, 0.4, 0.3), num_probes=1)
    trusted = Draft.unchecked(checked.tokens, checked.parents, checked.chances, 1)
    assert (trusted, hash(trusted), repr(trusted)) == (checked, hash(checked), repr(checked))
    assert trusted.depths == checked.depths == [1, 2, 1]
    assert trusted.children is trusted.children
    assert trusted.depths is trusted.depths
    assert replace(trusted, tokens=(7, 7, 7)).children == {ROOT: {7: 0}, 0: {7: 1}}, "nothing of the old one is left"


def test_depth_first_a_tree_in_order_of_chance_has_its_likeliest_path_in_front() -> None:
    draft = Draft((1, 2, 3, 4, 5, 6), (-1, 0, -1, 0, 1, 2), (0.6, 0.5, 0.4, 0.1, 0.09, 0.08))
    assert reorder_depth_first(draft) == Draft((1, 2, 5, 4, 3, 6), (-1, 0, 1, 0, -1, 4), (0.6, 0.5, 0.09, 0.1, 0.4, 0.08))
    assert reorder_depth_first(EMPTY) is EMPTY


def test_the_likeliest_chain_follows_the_best_child_from_the_root() -> None:
    draft = Draft((1, 2, 3, 4, 5), (-1, -1, 1, 1, 3), (0.4, 0.6, 0.2, 0.4, 0.1))
    assert most_likely_chain(draft) == Draft((2, 4, 5), (-1, 0, 1), (0.6, 0.4, 0.1))
    assert most_likely_chain(EMPTY) == EMPTY


@pytest.mark.parametrize("seed", range(20))
def test_merging_keeps_every_path_once_with_its_best_chance(seed: int) -> None:
    one, two = bush(seed), bush(seed + 100)
    both = merge(one, two)
    assert paths(both) == paths(one) | paths(two)
    assert len(both) == len(paths(both))
    assert merge(both, one, two) == both


def test_a_chain_is_one_path() -> None:
    assert chain([4, 5, 6]) == Draft((4, 5, 6), (-1, 0, 1), (1.0, 1.0, 1.0))
    assert chain([]) == EMPTY


def test_merged_probes_follow_all_candidates_and_stay_rows_of_their_own() -> None:
    other = Draft((1, 3, 6), (-1, -1, 1), (0.4, 0.3, 0.2), num_probes=2)
    assert merge(ASKING, other) == Draft(
        (1, 2, 6, 7, 8, 9, 3, 6), (-1, 0, -1, 2, 0, 1, -1, 6), (0.9, 0.2, 0.1, 0.1, 0.1, 0.1, 0.3, 0.2), num_probes=6
    )
    assert merge(chain([6]), ASKING).num_probes == ASKING.num_probes
    assert paths(merge(other, ASKING)) == paths(other) | paths(ASKING)
