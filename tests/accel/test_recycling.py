"""Token Recycling: drafts of the model's top tokens from earlier forward passes, alone and merged with other drafts."""

from functools import partial
from typing import Any

import pytest

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, Drafter
from antiphon.accel.drafting.drafters import Blend, Recycling, RecyclingTable, SuffixMatch
from antiphon.accel.generate import generate
from antiphon.accel.language_model import LanguageModel
from tests.accel.adversarial_drafters import RecordingDrafter
from tests.accel.test_contract import plain, prompt_of
from tests.accel.test_recycling_table import logits_of
from tests.tiny import byte_tokenizer, tiny_model

GREEDY: dict[str, Any] = {"max_new_tokens": 48, "do_sample": False, "eos_token_id": None}


def table_with(*contexts: tuple[int, int, int]) -> RecyclingTable:
    """Return a table in which one token is the best after each pair."""
    table = RecyclingTable()
    for before, last, follower in contexts:
        table.update((before, last), EMPTY, logits_of({follower: 9.0}))
    return table


def best_child(draft: Draft, parent: int = ROOT) -> int:
    """Return the most likely child of a row."""
    return next(draft.tokens[row] for row in range(len(draft)) if draft.parents[row] == parent)


def test_rejected_rows_update_the_table() -> None:
    """The row of token 8 is rejected; when 8 is emitted later, the model's best token after it is drafted."""
    drafter = Recycling()
    drafter.begin([1, 2], [])
    draft = Draft((8,), (ROOT,), (0.5,))
    drafter.observe(draft, Accepted((), (5,)), logits_of({5: 9.0}, {21: 9.0}))
    assert best_child(drafter.propose([1, 2, 5, 2, 8], 4)) == 21


def test_text_and_table_share_the_chance_of_a_row() -> None:
    """After a match of m tokens, m / (m + 2) of the probability follows the text; the table shares the rest."""
    table = table_with((7, 1, 3))
    guess = table.lookup(7, 1)[3]
    for reference, follows, guessed in (([7, 1, 9], 2 / 4, 2 / 4 * guess), ([7, 1, 3], 2 / 4 + 2 / 4 * guess, None)):
        matcher = SuffixMatch(common=0, recycling=table)
        matcher.begin([7, 1], [reference])
        draft = matcher.propose([7, 1], 32)
        chances = {t: c for t, c, p in zip(draft.tokens, draft.chances, draft.parents, strict=True) if p == ROOT}
        assert chances[reference[2]] == pytest.approx(follows)
        assert guessed is None or chances[3] == pytest.approx(guessed)


@pytest.mark.parametrize("make", [Recycling, lambda table: Blend(recycling=table)], ids=["recycling", "matcher"])
def test_a_warm_table_saves_forward_passes_and_changes_no_text(make: Any) -> None:
    table = RecyclingTable()
    recorders = [RecordingDrafter(make(table)) for _ in range(2)]
    for recorder in recorders:
        output: Any = generate(
            tiny_model(), prompt_of(3), drafter=partial(identity, recorder), num_draft_tokens=32, **GREEDY
        )
        assert output.tolist() == plain("llama", "greedy").tolist()
    cold, warm = (recorder.records for recorder in recorders)
    assert len(warm) < len(cold)
    assert any(len(set(record.draft.parents)) < len(record.draft) for record in warm), "some drafts branch"


def identity(drafter: Drafter) -> Drafter:
    return drafter


def num_forward_passes(language_model: LanguageModel, **settings: Any) -> int:
    """Return the number of forward passes that generating one text takes."""
    return language_model.generate("A text.", max_new_tokens=40, **settings).steps.steps


def test_the_table_of_a_tenant_is_isolated_from_others() -> None:
    language_model = LanguageModel(tiny_model(), byte_tokenizer(), num_draft_tokens=32)
    assert language_model.recycling_table is not None
    ours, theirs = RecyclingTable(), RecyclingTable()
    cold = num_forward_passes(language_model, recycling=ours)
    assert num_forward_passes(language_model, recycling=ours) < cold, "our entries are used for our requests"
    assert language_model.recycling_table.size == theirs.size == 0
    size = ours.size
    assert num_forward_passes(language_model, recycling=theirs) == cold
    assert num_forward_passes(language_model) == cold
    assert ours.size == size


def test_recycling_can_be_disabled_per_request_and_per_model() -> None:
    table = RecyclingTable()
    on, off = (
        LanguageModel(tiny_model(), byte_tokenizer(), num_draft_tokens=32, recycling=each) for each in (table, False)
    )
    num_forward_passes(on, recycling=False)
    assert table.size == 0
    assert off.recycling_table is None
    assert num_forward_passes(off) == num_forward_passes(off)
    num_forward_passes(on, drafter="recycling")
    assert table.size > 0


def test_another_models_table_is_refused() -> None:
    with pytest.raises(ValueError, match="recycling is the recycling table of 'other', and this is 'llama'"):
        LanguageModel(tiny_model(), byte_tokenizer(), recycling=RecyclingTable("other"))
