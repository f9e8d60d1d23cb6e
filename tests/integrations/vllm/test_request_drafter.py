"""The drafts of one request: which references are indexed, and how much of its chains is accepted."""

from collections.abc import Sequence
from functools import partial

import pytest

from antiphon.accel.drafting.calibration import Calibration
from antiphon.accel.drafting.draft import Accepted, Draft, Logits, Tokens, chain
from antiphon.accel.drafting.drafters import Nothing
from antiphon.accel.drafting.drafters.suffix_match import SuffixMatch
from antiphon.integrations.vllm.admission import Sources
from antiphon.integrations.vllm.request_drafter import RequestDrafter, cautious_chances

PASSAGE = tuple(range(100, 130))


def make_drafter(prompt: Sequence[int], references: Sequence[Sequence[int]], k: int = 8) -> RequestDrafter:
    make = partial(SuffixMatch, depth=k, common=0, recycling=False, branching=False)
    return RequestDrafter(None, make, tuple(prompt), Sources(tuple(map(tuple, references))), Calibration(), 10**6)


def test_a_passage_in_the_prompt_with_other_tokens_at_its_ends_is_not_indexed_twice() -> None:
    """Tokenized alone, a passage starts with "The"; inside a prompt with " The". Its last token can differ, too."""
    prompt = [1, 50, *PASSAGE[1:-1], 60, 110, 70, 110, 71, 110]
    alone = make_drafter(prompt, [PASSAGE]).propose(16)
    assert alone.chances == make_drafter(prompt, []).propose(16).chances
    assert alone.chances != make_drafter(prompt, [PASSAGE[:13]]).propose(16).chances, "a short reference is indexed"


def test_each_token_has_the_lower_of_two_estimates_of_its_own_chance() -> None:
    """The estimates of the tokens' own chances are 0.8, 0.9, 0.5 and 0.85, 0.5, 0.8."""
    assert cautious_chances([0.8, 0.72, 0.36], [0.85, 0.425, 0.34]) == pytest.approx([0.8, 0.4, 0.2])
    assert cautious_chances([0.5, 0.0, 0.0], [0.8, 0.6, 0.5]) == [0.5, 0.0, 0.0]
    assert cautious_chances([0.5, 0.4], [0.0, 0.0]) == [0.0, 0.0]
    assert cautious_chances([], []) == []


def test_a_drafter_observes_the_accepted_tokens_only() -> None:
    class Watching(Nothing):
        def __init__(self) -> None:
            self.seen: list[Accepted] = []

        def propose(self, context: Tokens, budget: int) -> Draft:
            return chain([5, 6, 7])

        def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
            self.seen.append(accepted)

    watching = Watching()
    drafter = RequestDrafter(None, lambda: watching, [1, 2], Sources(), Calibration(), 100)
    for emitted in ([5, 9], [5, 6, 7, 8], [4]):
        drafter.take(drafter.propose(3).draft, 3)
        drafter.observe(emitted)
    assert [accepted.path for accepted in watching.seen] == [(0,), (0, 1, 2), ()]
    assert drafter.context == [1, 2, 5, 9, 5, 6, 7, 8, 4]
