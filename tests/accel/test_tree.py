"""Tree geometry: sliding windows and chunks by position, padding rows."""

import pytest
import torch

from antiphon.accel.drafting.draft import ROOT
from antiphon.accel.drafting.tree import AttentionSpan, Tree, build_tree
from antiphon.accel.engines.torch.attention import attention_mask


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
