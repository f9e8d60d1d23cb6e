"""The words of drafting."""

import random

import pytest

from antiphon.accel.draft import EMPTY, ROOT, Draft, chain, likeliest_chain, merge, trim


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
        ((1,), (0,), (1.0,), 0, "Row 0 follows row 0"),
        ((1, 2), (-1, -2), (1.0, 1.0), 0, "Row 1 follows row -2"),
        ((1,), (-1,), (1.0,), 2, "probes is 2"),
    ],
)
def test_an_impossible_draft_is_refused(
    tokens: tuple[int, ...], parents: tuple[int, ...], chances: tuple[float, ...], probes: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Draft(tokens, parents, chances, probes)


def test_of_duplicate_siblings_the_first_counts_and_probes_are_nobodys_children() -> None:
    draft = Draft((7, 7, 8, 9), (-1, -1, 0, 0), (1.0,) * 4, probes=1)
    assert draft.children == {ROOT: {7: 0}, 0: {8: 2}}
    assert draft.depths == [1, 1, 2, 2]


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


def test_probes_are_trimmed_together() -> None:
    draft = Draft((1, 2, 3), (-1, 0, 1), (0.9, 0.8, 0.0), probes=2)
    assert trim(draft, 3, 5) == draft
    assert trim(draft, 2, 5) == Draft((1,), (-1,), (0.9,))


def test_the_likeliest_chain_follows_the_best_child_from_the_root() -> None:
    draft = Draft((1, 2, 3, 4, 5), (-1, -1, 1, 1, 3), (0.4, 0.6, 0.2, 0.4, 0.1))
    assert likeliest_chain(draft) == Draft((2, 4, 5), (-1, 0, 1), (0.6, 0.4, 0.1))
    assert likeliest_chain(EMPTY) == EMPTY


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


def test_probes_cannot_be_merged() -> None:
    with pytest.raises(ValueError, match="1 probes"):
        merge(Draft((1,), (-1,), (1.0,), probes=1))
