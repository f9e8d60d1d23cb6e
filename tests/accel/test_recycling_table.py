"""The recycling table: updates from logits, lookups and replacement of old entries."""

import pytest
import torch
from torch import Tensor

from antiphon.accel.drafting.draft import EMPTY, ROOT, Draft, chain
from antiphon.accel.drafting.drafters import RecyclingTable
from antiphon.accel.engines.torch.logits import TorchLogits

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


def table_with(*pairs: tuple[int, int], entries: int = 100) -> RecyclingTable:
    """Return a table in which the best token after each pair is the second token plus 1."""
    table = RecyclingTable("m", entries=entries)
    for pair in pairs:
        table.update(pair, EMPTY, logits_of({pair[1] + 1: 3.0}))
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
    table = table_with((1, 2))
    assert list(table.lookup(9, 2)) == list(table.lookup(1, 2))
    assert table.lookup(9, 2)[3] < table.lookup(1, 2)[3]
    assert table.lookup(2, 1) == {}


def test_a_full_table_replaces_the_entry_written_the_longest_ago() -> None:
    table = table_with((1, 2), (3, 4), entries=4)
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
        table_with((1, 2)).update((1, 2), EMPTY, TorchLogits(torch.zeros(1, 41)))
