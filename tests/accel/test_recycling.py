"""Token Recycling: the table of top tokens from earlier forward passes, and drafts from it."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, Drafter, chain
from antiphon.accel.drafting.drafters import Blend, Recycling, RecyclingTable, SuffixMatch
from antiphon.accel.engines.torch.logits import TorchLogits
from antiphon.accel.generate import generate
from antiphon.accel.language_model import LanguageModel
from tests.accel.adversarial_drafters import RecordingDrafter
from tests.accel.test_contract import plain, prompt_of
from tests.tiny import byte_tokenizer, tiny_model

GREEDY: dict[str, Any] = {"max_new_tokens": 48, "do_sample": False, "eos_token_id": None}


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


VOCAB_SIZE = 40


def tensor_of(*rows: dict[int, float]) -> Tensor:
    """Return logits with the given values; those of other tokens are lower and decrease with the token id."""
    logits = -10 - torch.arange(VOCAB_SIZE).float().repeat(len(rows), 1)
    for row, given in zip(logits, rows, strict=True):
        row[list(given)] = torch.tensor(list(given.values()))
    return logits


def logits_of(*rows: dict[int, float]) -> TorchLogits:
    """Return the logits of `tensor_of` as an engine returns them."""
    return TorchLogits(tensor_of(*rows))


def table_with(*contexts: tuple[int, int, int], entries: int = 100) -> RecyclingTable:
    """Return a table in which one token is the best after each pair."""
    table = RecyclingTable("m", entries=entries)
    for before, last, follower in contexts:
        table.update((before, last), EMPTY, logits_of({follower: 9.0}))
    return table


def test_every_row_writes_the_entry_of_the_last_two_tokens_on_its_path() -> None:
    draft = Draft((7, 8, 9), (ROOT, 0, ROOT), (0.5, 0.4, 0.3))
    table = RecyclingTable()
    table.update((4, 5, 6), draft, logits_of({11: 2.0}, {12: 2.0}, {13: 2.0}, {14: 2.0}))
    for context, follower in (((5, 6), 11), ((6, 7), 12), ((7, 8), 13), ((6, 9), 14)):
        assert next(iter(table.lookup(*context))) == follower
    assert table.size == 4 + 4, "each has an entry of two tokens and one of the last token"


@pytest.mark.parametrize("likelier", [0, 1])
def test_of_equal_contexts_the_most_likely_row_counts(likelier: int) -> None:
    chances = (0.5, 0.2) if likelier == 0 else (0.2, 0.5)
    draft = Draft((7, 7, 8, 8), (ROOT, ROOT, 0, 1), (*chances, *chances))
    table = RecyclingTable()
    table.update((4, 5), draft, logits_of({11: 2.0}, {12: 2.0}, {13: 2.0}, {14: 2.0}, {15: 2.0}))
    assert next(iter(table.lookup(7, 8))) == (14, 15)[likelier]
    assert next(iter(table.lookup(3, 7))) == (12, 13)[likelier]


def test_an_unknown_pair_backs_off_to_its_last_token_with_lower_chances() -> None:
    table = table_with((1, 2, 3))
    assert list(table.lookup(9, 2)) == list(table.lookup(1, 2))
    assert table.lookup(9, 2)[3] < table.lookup(1, 2)[3]
    assert table.lookup(2, 1) == {}


def test_a_full_table_replaces_the_entry_written_the_longest_ago() -> None:
    table = table_with((1, 2, 3), (3, 4, 5), entries=4)
    table.update((1, 2), EMPTY, logits_of({3: 1.0}))  # this entry is written again, so that (3, 4) becomes the oldest
    table.update((5, 6), EMPTY, logits_of({7: 1.0}))
    assert table.size == 4
    assert table.lookup(3, 4) == {}
    assert next(iter(table.lookup(1, 2))) == 3
    assert next(iter(table.lookup(5, 6))) == 7


def test_of_more_rows_than_entries_the_last_ones_stay() -> None:
    table = RecyclingTable(entries=2)
    table.update((1, 2), chain([3, 4]), logits_of({10: 1.0}, {11: 1.0}, {12: 1.0}))
    assert table.size == 2
    assert next(iter(table.lookup(3, 4))) == 12
    assert next(iter(table.lookup(2, 3))) == 11
    assert table.lookup(1, 2) == {}


def test_logits_of_another_vocabulary_are_refused() -> None:
    with pytest.raises(ValueError, match="has the 40 tokens of 'm', and this model has 41"):
        table_with((1, 2, 3)).update((1, 2), EMPTY, TorchLogits(torch.zeros(1, 41)))
