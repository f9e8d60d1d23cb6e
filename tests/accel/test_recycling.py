"""Token Recycling: what the model found likely before drafts what it says next, alone and within blend."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, Drafter
from antiphon.accel.drafting.drafters import Blend, Recycling, RecyclingTable, SuffixMatch
from antiphon.accel.engines.torch.bita_weights import initial_bita_weights
from antiphon.accel.engines.torch.logits import TorchLogits
from antiphon.accel.generate import generate
from antiphon.accel.language_model import LanguageModel
from antiphon.accel.testing.drafters import RecordingDrafter
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from tests.accel.test_contract import plain, prompt_of
from tests.accel.test_runners_up import logits_of, tensor_of

GREEDY: dict[str, Any] = {"max_new_tokens": 48, "do_sample": False, "eos_token_id": None}


def knowing(*contexts: tuple[int, int, int]) -> RecyclingTable:
    """A table that knows one token to be the best after each pair."""
    table = RecyclingTable()
    for before, last, follower in contexts:
        table.update((before, last), EMPTY, logits_of({follower: 9.0}))
    return table


def first(draft: Draft, parent: int = ROOT) -> int:
    """The likeliest child of a row."""
    return next(draft.tokens[row] for row in range(len(draft)) if draft.parents[row] == parent)


def test_the_tree_grows_best_first_by_the_product_of_chances() -> None:
    table = knowing((1, 2, 3), (2, 3, 4))
    drafter = Recycling(table)
    drafter.begin([1, 2], [])
    draft = drafter.propose([1, 2], 20)
    assert draft.tokens[:2] == (3, 4)
    assert draft.parents[:2] == (ROOT, 0)
    assert draft.chances[1] == pytest.approx(table.lookup(1, 2)[3] * table.lookup(2, 3)[4])
    assert list(draft.chances) == sorted(draft.chances, reverse=True)


def test_what_was_rejected_is_recycled() -> None:
    """The row of token 8 is rejected; when 8 comes after all, what the model found after it is there."""
    drafter = Recycling()
    drafter.begin([1, 2], [])
    draft = Draft((8,), (ROOT,), (0.5,))
    drafter.observe(draft, Accepted((), (5,)), logits_of({5: 9.0}, {21: 9.0}))
    assert first(drafter.propose([1, 2, 5, 2, 8], 4)) == 21


def test_a_step_that_was_not_proposed_for_still_knows_its_last_two_tokens() -> None:
    drafter = Recycling()
    drafter.begin([1, 2], [])
    drafter.observe(EMPTY, Accepted((), (3,)), logits_of({3: 9.0}))
    drafter.observe(EMPTY, Accepted((), (4,)), logits_of({4: 9.0}))
    assert first(drafter.propose([9, 2, 3], 1)) == 4


def test_a_table_of_ones_own_is_kept_and_the_drafters_own_is_not() -> None:
    own, shared = Recycling(), Recycling(knowing((1, 2, 3)))
    own.begin([1, 2], [])
    own.observe(EMPTY, Accepted((), (3,)), logits_of({3: 9.0}))
    assert len(own.propose([1, 2], 4)) == 4
    for drafter, rows in ((own, 0), (shared, 4)):
        drafter.begin([1, 2], [])
        assert len(drafter.propose([1, 2], 4)) == rows


def test_blend_guesses_by_the_table_where_no_text_goes_on() -> None:
    blend = SuffixMatch(common=0, recycling=knowing((7, 1, 3), (1, 3, 4)))
    blend.begin([7, 1], [])
    assert blend.propose([7, 1], 2).tokens == (3, 4)
    assert len(SuffixMatch(common=0, recycling=False).propose([7, 1], 2)) == 0


def test_in_blend_text_and_table_share_the_chance_of_a_row() -> None:
    """After a match of m tokens, m / (m + 2) follows the text, and of the rest the table says what it says."""
    table = knowing((7, 1, 3))
    guess = table.lookup(7, 1)[3]
    for reference, follows, guessed in (([7, 1, 9], 2 / 4, 2 / 4 * guess), ([7, 1, 3], 2 / 4 + 2 / 4 * guess, None)):
        blend = SuffixMatch(common=0, escape=2.0, recycling=table)
        blend.begin([7, 1], [reference])
        draft = blend.propose([7, 1], 32)
        chances = {t: c for t, c, p in zip(draft.tokens, draft.chances, draft.parents, strict=True) if p == ROOT}
        assert chances[reference[2]] == pytest.approx(follows)
        assert guessed is None or chances[3] == pytest.approx(guessed)


def test_the_table_goes_on_below_copied_rows() -> None:
    blend = SuffixMatch(common=0, recycling=knowing((1, 9, 5)))
    blend.begin([7, 1], [[7, 1, 9]])
    draft = blend.propose([7, 1], 3)
    assert (draft.tokens[0], first(draft, 0)) == (9, 5)


def test_versatile_tokens_take_what_the_table_leaves_open() -> None:
    table = knowing((7, 99, 3))
    blend = SuffixMatch(common=1, recycling=table)
    blend.begin([], [[1, 5, 2, 5, 3, 5]])
    draft = blend.propose([7, 99], 99)
    chances = dict(zip(draft.tokens, draft.chances, strict=True))
    assert chances[3] == pytest.approx(table.lookup(7, 99)[3])
    if 5 not in table.lookup(7, 99):
        assert chances[5] == pytest.approx(0.5 * (1 - sum(table.lookup(7, 99).values())))


@pytest.mark.parametrize("make", [Recycling, lambda table: Blend(recycling=table)], ids=["recycling", "blend"])
def test_a_warm_table_saves_forwards_and_changes_no_text(make: Any) -> None:
    table = RecyclingTable()
    recorders = [RecordingDrafter(make(table)) for _ in range(2)]
    for recorder in recorders:
        output = generate(
            tiny_model(), prompt_of(3), drafter=partial(forwarded, recorder), num_draft_tokens=32, **GREEDY
        )
        assert isinstance(output, Tensor)
        assert output.tolist() == plain("llama", "greedy").tolist()
    cold, warm = (recorder.records for recorder in recorders)
    assert len(warm) < len(cold)
    assert any(len(set(record.draft.parents)) < len(record.draft) for record in warm), "some drafts branch"


def forwarded(drafter: Drafter) -> Drafter:
    return drafter


def asked(language_model: LanguageModel, **settings: Any) -> int:
    """How many forwards a text took."""
    return language_model.generate("A text.", max_new_tokens=40, **settings).steps.steps


def test_a_tenants_table_neither_learns_from_others_nor_serves_them() -> None:
    language_model = LanguageModel(tiny_model(), byte_tokenizer(), num_draft_tokens=32)
    assert language_model.recycling_table is not None
    ours, theirs = RecyclingTable(), RecyclingTable()
    cold = asked(language_model, recycling=ours)
    assert asked(language_model, recycling=ours) < cold, "what ours learned serves ours"
    assert language_model.recycling_table.size == theirs.size == 0
    size = ours.size
    assert asked(language_model, recycling=theirs) == cold
    assert asked(language_model) == cold
    assert ours.size == size


def test_a_language_model_remembers_until_it_is_cleared() -> None:
    language_model = LanguageModel(tiny_model(), byte_tokenizer(), num_draft_tokens=32)
    assert language_model.recycling_table is not None
    cold = asked(language_model)
    assert asked(language_model) < cold
    language_model.recycling_table.clear()
    assert asked(language_model) == cold


def test_recycling_can_be_switched_off_for_a_request_and_for_all() -> None:
    table = RecyclingTable()
    on, off = (
        LanguageModel(tiny_model(), byte_tokenizer(), num_draft_tokens=32, recycling=each) for each in (table, False)
    )
    asked(on, recycling=False)
    assert table.size == 0
    assert off.recycling_table is None
    assert asked(off) == asked(off)
    asked(on, drafter="recycling")
    assert table.size > 0


def test_another_models_table_is_refused() -> None:
    with pytest.raises(ValueError, match="recycling is the recycling table of 'other', and this is 'llama'"):
        LanguageModel(tiny_model(), byte_tokenizer(), recycling=RecyclingTable("other"))


def test_half_precision_logits_teach_the_same_order() -> None:
    logits = tensor_of({3: 9.0, 5: 8.0})
    tables = [RecyclingTable(), RecyclingTable()]
    for table, dtype in zip(tables, (torch.float32, torch.bfloat16), strict=True):
        table.update((1, 2), EMPTY, TorchLogits(logits.to(dtype)))
    assert list(tables[0].lookup(1, 2))[:2] == list(tables[1].lookup(1, 2))[:2] == [3, 5]


def test_beside_bita_the_same_table_is_used_and_switched_off() -> None:
    table = RecyclingTable()
    on = LanguageModel(tiny_model(), byte_tokenizer(), num_draft_tokens=32, recycling=table)
    together = partial(Blend, initial_bita_weights(on.model, prefix=2, masks=2))
    asked(on, drafter=together, recycling=False)
    assert table.size == 0
    asked(on, drafter=together)
    assert table.size > 0
