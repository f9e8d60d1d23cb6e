"""Properties that every drafter has."""

import random
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.accel.drafting.draft import ROOT, Accepted, Draft, Drafter, DrafterFactory, without_probes
from antiphon.accel.drafting.drafters import (
    DRAFTERS,
    WINDOW,
    Bita,
    Blend,
    Lookahead,
    SuffixMatch,
    Trie,
    make_drafter,
)

VOCAB_SIZE = 12
FACTORIES: dict[str, DrafterFactory] = {
    **DRAFTERS,
    "blend+lookahead": partial(Blend, window=WINDOW),
    "suffix match": SuffixMatch,
}


def texts(seed: int) -> tuple[list[int], list[list[int]], list[int]]:
    """Return a random prompt, references (some are empty) and an answer; the small vocabulary makes n-grams repeat."""
    chance = random.Random(seed)

    def text(length: int) -> list[int]:
        return [chance.randrange(VOCAB_SIZE) for _ in range(length)]

    return text(chance.randrange(1, 20)), [text(length) for length in (0, 1, 2, 30, chance.randrange(60))], text(40)


def drafts(drafter: Drafter, prompt: list[int], references: Sequence[list[int]], answer: list[int]) -> list[Draft]:
    """Return the drafts of a run in which the model emits ``answer``, one to three tokens per step."""
    drafter.begin(prompt, references)
    context = list(prompt)
    made: list[Draft] = []
    for step, size in enumerate((1, 2, 3) * (len(answer) // 6)):
        new, answer = answer[:size], answer[size:]
        context += new
        drafter.observe(made[-1] if made else Draft(), Accepted(tuple(range(len(new) - 1)), tuple(new)), None)
        made.append(drafter.propose(context, (0, 1, 2, 7, 32)[step % 5]))
        assert made[-1].num_candidates <= (0, 1, 2, 7, 32)[step % 5], "probes do not count"
    return made


@pytest.mark.parametrize("name", FACTORIES)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_drafts_are_valid_trees_whose_chances_are_consistent(name: str, seed: int) -> None:
    for draft in map(without_probes, drafts(FACTORIES[name](), *texts(seed))):
        siblings = list(zip(draft.parents, draft.tokens, strict=True))
        assert len(set(siblings)) == len(siblings), "siblings carry distinct tokens"
        assert all(0 <= token < VOCAB_SIZE for token in draft.tokens)
        assert all(0 < chance <= 1 for chance in draft.chances)
        for row, parent in enumerate(draft.parents):
            assert parent < row
            assert draft.chances[row] <= (1 if parent == ROOT else draft.chances[parent]), "a child is never likelier"
        for parent in draft.children:
            chance = 1 if parent == ROOT else draft.chances[parent]
            assert sum(draft.chances[row] for row in draft.children[parent].values()) <= chance + 1e-9


@pytest.mark.parametrize("name", FACTORIES)
def test_begin_forgets_the_previous_request(name: str) -> None:
    used, fresh = FACTORIES[name](), FACTORIES[name]()
    drafts(used, *texts(1))
    assert drafts(used, *texts(2)) == drafts(fresh, *texts(2))


@pytest.mark.parametrize("name", FACTORIES)
def test_without_any_text_the_draft_is_empty(name: str) -> None:
    drafter = FACTORIES[name]()
    drafter.begin([], [])
    assert len(drafter.propose([], 32)) == 0
    drafter.begin([5], [[], []])
    assert drafter.propose([5], 32).num_candidates <= 1  # only one token is known


@pytest.mark.parametrize("name", FACTORIES)
def test_a_smaller_budget_gives_the_first_rows_of_a_larger_one(name: str) -> None:
    prompt, references, answer = texts(5)
    small, large = FACTORIES[name](), FACTORIES[name]()
    small.begin(prompt, references)
    large.begin(prompt, references)
    few, many = (without_probes(each.propose(prompt + answer, rows)) for each, rows in ((small, 5), (large, 30)))
    assert (few.tokens, few.parents) == (many.tokens[:5], many.parents[:5])


def test_make_drafter_takes_names_and_refuses_options_of_other_drafters() -> None:
    assert make_drafter("trie") is Trie
    assert make_drafter("blend") is Blend
    blend, lookahead = (
        make_drafter("blend", window=(5, 3, 5))(),
        make_drafter("lookahead", window=(3, 4, 2))(),
    )
    assert isinstance(blend, Blend)
    assert isinstance(lookahead, Lookahead)
    assert blend.parts == (SuffixMatch, Lookahead)
    assert (lookahead.width, lookahead.ngram, lookahead.guesses) == (3, 4, 2)
    masks: Any = SimpleNamespace(masks=(0, 0))
    assert isinstance(make_drafter("bita", bita=masks)(), Bita)
    both: Any = make_drafter("blend", bita=masks, window=(5, 3, 5))()
    assert both.parts == (SuffixMatch, Bita, Lookahead)
    with pytest.raises(ValueError, match="no drafter named 'bushel'; choose one of nothing, copying, trie, recycling"):
        make_drafter("bushel")
    with pytest.raises(ValueError, match="BiTA's weights are for the drafters bita and blend, and this is 'trie'"):
        make_drafter("trie", bita=masks)
    with pytest.raises(ValueError, match="A window is for the drafters lookahead and blend, and this is 'bita'"):
        make_drafter("bita", bita=masks, window=(5, 3, 5))
    with pytest.raises(ValueError, match="needs weights that were trained for the model"):
        make_drafter("bita")


@pytest.mark.parametrize("name", ["trie", "blend"])
def test_drafts_do_not_depend_on_the_hash_seed(name: str) -> None:
    script = f"""
from antiphon.accel.drafting.drafters import make_drafter
drafter = make_drafter({name!r})()
drafter.begin(list(range(40)) * 3, [[t * t % 31 for t in range(200)], [t * 7 % 23 for t in range(200)]])
print(drafter.propose(list(range(40)) * 3 + [4], 32))
"""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
