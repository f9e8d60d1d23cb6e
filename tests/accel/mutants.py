"""Deliberate faults in the engine, each by one patch. `test_mutants` lists the tests that must detect them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from antiphon.accel.decoding import step
from antiphon.accel.decoding.tokens import Sampler
from antiphon.accel.drafting.draft import ROOT, Accepted, Draft, Logits
from antiphon.accel.drafting.tree import AttentionSpan, Tree, build_tree
from antiphon.accel.engines.openvino.paged_memory import BlockStorage
from antiphon.accel.engines.torch import sequence
from antiphon.accel.engines.torch.compiled_sequence import CompiledSequence
from antiphon.accel.engines.torch.masks import attention_mask
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.engines.torch.slot_cache import POSITIONS, SLOTS

Patch = pytest.MonkeyPatch


def positions_are_row_indices(patch: Patch) -> None:
    """The position of a row is its index among the rows, not its depth: correct for a chain only."""
    patch.setattr(
        sequence,
        "build_tree",
        lambda pending, parents, padding_rows: with_row_indices(build_tree(pending, parents, padding_rows)),
    )


def rows_do_not_attend_to_ancestors(patch: Patch) -> None:
    """A draft row attends to the confirmed tokens and itself only."""

    def without_ancestors(pending: int, parents: Sequence[int], padding_rows: int) -> Tree:
        tree = build_tree(pending, parents, padding_rows)
        mask = np.eye(len(tree), dtype=np.bool_)
        mask[:, :pending] = tree.ancestor_mask[:, :pending]
        return replace(tree, ancestor_mask=mask)

    patch.setattr(sequence, "build_tree", without_ancestors)


def rows_attend_to_siblings(patch: Patch) -> None:
    """The mask is causal: a draft row attends to every row before it."""

    def causal(pending: int, parents: Sequence[int], padding_rows: int) -> Tree:
        tree = build_tree(pending, parents, padding_rows)
        return replace(tree, ancestor_mask=np.tri(len(tree), dtype=np.bool_))

    patch.setattr(sequence, "build_tree", causal)


def window_is_one_too_wide(patch: Patch) -> None:
    """The sliding window is one position larger than the model's."""

    def widened(tree: Tree, reach: AttentionSpan, **places: Any) -> Tensor:
        window = None if reach.window is None else reach.window + 1
        return attention_mask(tree, replace(reach, window=window), **places)

    patch.setattr(sequence, "attention_mask", widened)


def window_counts_rows(patch: Patch) -> None:
    """The sliding window counts rows instead of positions, so siblings push earlier tokens out of the window."""
    patch.setattr(
        sequence,
        "attention_mask",
        lambda tree, reach, **places: attention_mask(with_row_indices(tree), reach, **places),
    )


def left_padding_is_attended(patch: Patch) -> None:
    """Draft rows attend to the slots of the left padding."""
    patch.setattr(
        sequence, "attention_mask", lambda tree, reach, **places: attention_mask(tree, reach, **places | {"padding": 0})
    )


def positions_include_the_padding(patch: Patch) -> None:
    """Positions start at the padding: rotary models are unaffected, learned positions are not."""

    class ShiftedModel:
        def __init__(self, model: Any, by: int) -> None:
            self.model, self.by = model, by

        def __getattr__(self, name: str) -> Any:
            return getattr(self.model, name)

        def __call__(self, *, position_ids: Tensor, **given: Any) -> Any:
            return self.model(position_ids=position_ids + self.by, **given)

    make = TorchSequence.__init__

    def shifted(self: TorchSequence, model: Any, *given: Any, padding: int = 0, **named: Any) -> None:
        make(self, model, *given, padding=padding, **named)
        self.model = ShiftedModel(model, padding)  # type: ignore[assignment]

    patch.setattr(TorchSequence, "__init__", shifted)


def eager_mask_is_boolean(patch: Patch) -> None:
    """Eager attention adds zeros and ones to its scores instead of zeros and the lowest number."""
    patch.setattr(sequence, "additive_mask", lambda sees, dtype: sees)


def the_first_rows_are_kept(patch: Patch) -> None:
    """The number of kept rows is right, but the first rows of the draft are kept."""
    keep = TorchSequence.keep
    patch.setattr(TorchSequence, "keep", lambda self, path: keep(self, range(len(path))))


def rejected_rows_are_kept(patch: Patch) -> None:
    """All drafted rows stay in the KV cache and count as text."""
    forward, keep = TorchSequence.forward, TorchSequence.keep
    drafted: list[int] = []

    def recording(self: TorchSequence, pending: Sequence[int], draft: Draft) -> Tensor:
        drafted[:] = range(len(draft))
        return forward(self, pending, draft)

    patch.setattr(TorchSequence, "forward", recording)
    patch.setattr(TorchSequence, "keep", lambda self, path: keep(self, tuple(drafted)))


def cache_is_not_cropped(patch: Patch) -> None:
    """Rejected rows stay in the KV cache behind the text and are not counted."""
    patch.setattr("antiphon.accel.engines.torch.cache_kinds._remove_last", lambda layer, count: None)
    patch.setattr("antiphon.accel.engines.torch.growing_cache.GrowingLayer.crop", lambda self, tokens: None)


def accepted_rows_are_not_moved(patch: Patch) -> None:
    """Accepted rows are not moved, so the first rows of the draft are in their place."""
    patch.setattr("antiphon.accel.engines.torch.cache_kinds._move_up", lambda rows, stray, moved: None)


def accepted_rows_are_not_moved_in_paged_memory(patch: Patch) -> None:
    """OpenVINO's paged memory does not move accepted rows."""
    patch.setattr(BlockStorage, "move_rows", lambda memory, sources, targets: None)


def recurrent_state_is_not_rewound(patch: Patch) -> None:
    """The recurrent state continues from the end of the draft, whatever was accepted."""
    forward, keep = TorchSequence.forward, TorchSequence.keep
    fed = [0, 0]

    def recording(self: TorchSequence, pending: Sequence[int], draft: Draft) -> Tensor:
        fed[:] = [len(pending), len(draft)]
        return forward(self, pending, draft)

    def keep_without_rewind(self: TorchSequence, path: Sequence[int]) -> None:
        if self.level != "replay" or not fed[1]:
            return keep(self, path)
        self.length += fed[0] + len(path)
        return None

    patch.setattr(TorchSequence, "forward", recording)
    patch.setattr(TorchSequence, "keep", keep_without_rewind)


def bonus_token_is_dropped(patch: Patch) -> None:
    """A draft accepted down to a leaf emits no bonus token."""

    def without_bonus_token(draft: Draft, choose: Choose, commit: Commit) -> Accepted:
        accepted = verify_with_faults(draft, choose, commit, at_leaf=lambda row: None)
        return accepted if accepted.tokens else verify_with_faults(draft, choose, commit)

    patch.setattr(step, "verify", without_bonus_token)


def end_of_text_is_checked_per_forward_pass(patch: Patch) -> None:
    """The end of the text is checked once per forward pass, after all accepted tokens."""

    def never_ended(draft: Draft, choose: Choose, commit: Commit) -> Accepted:
        return verify_with_faults(draft, choose, lambda token: bool(commit(token)) and False)

    patch.setattr(step, "verify", never_ended)


def length_is_checked_per_forward_pass(patch: Patch) -> None:
    """The same, and drafts may exceed the remaining length: neither fault alone changes the output."""
    fit = TorchSequence.fit
    patch.setattr(TorchSequence, "fit", lambda self, draft, rows, depth, pending: fit(self, draft, rows, 99, pending))
    end_of_text_is_checked_per_forward_pass(patch)


def criteria_are_checked_per_forward_pass(patch: Patch) -> None:
    """Custom criteria see all accepted tokens at once, as in transformers; the other criteria are checked per token."""

    def criteria_at_the_end(draft: Draft, choose: Choose, commit: Commit) -> Accepted:
        stop: Any = commit.__self__  # type: ignore[attr-defined]
        others, stop.other_criteria = stop.other_criteria, []
        accepted = verify_with_faults(draft, choose, commit)
        stop.other_criteria = others
        if others and bool(others(stop.history.ids, stop.scores()).all()):
            stop.finish = "stop"
        return accepted

    patch.setattr(step, "verify", criteria_at_the_end)


def first_child_is_followed(patch: Patch) -> None:
    """After an accepted row, verification continues at the first child of its parent, even if that is another row."""

    def following_the_first_child(draft: Draft, choose: Choose, commit: Commit) -> Accepted:
        first = {row: dict.fromkeys(children, min(children.values())) for row, children in draft.children.items()}
        return verify_with_faults(draft, choose, commit, children=first)

    patch.setattr(step, "verify", following_the_first_child)


def leaves_have_a_padding_child(patch: Patch) -> None:
    """Leaves have a child with token id 0, as if paths were padded to one length (REST); the child is the last row."""

    def with_padding_child(draft: Draft, choose: Choose, commit: Commit) -> Accepted:
        return verify_with_faults(draft, choose, commit, at_leaf=lambda row: {0: len(draft) - 1} if row != ROOT else {})

    patch.setattr(step, "verify", with_padding_child)


def every_row_is_sampled(patch: Patch) -> None:
    """Processors run and random numbers are drawn for all rows of a forward pass, including rejected ones."""
    bind = Sampler.bind

    def all_rows(self: Sampler, logits: Logits) -> Callable[[int], int]:
        choose = bind(self, logits)
        tokens = [choose(row) for row in range(ROOT, len(logits) - 1)]
        return lambda row: tokens[row + 1]

    patch.setattr(Sampler, "bind", all_rows)


def processors_do_not_see_the_path(patch: Patch) -> None:
    """At every row processors see the text from before the forward pass."""
    bind = Sampler.bind

    def with_old_text(self: Sampler, logits: Logits) -> Callable[[int], int]:
        known = self.history.ids.clone()
        processors = self.processors

        def choose(row: int) -> int:
            self.processors = lambda ids, scores: processors(known, scores)
            token = bind(self, logits)(row)
            self.processors = processors
            return token

        return choose

    patch.setattr(Sampler, "bind", with_old_text)


def logits_are_shifted_by_one_row(patch: Patch) -> None:
    """The token after a draft row is chosen from the logits of the previous row."""
    bind = Sampler.bind
    patch.setattr(Sampler, "bind", lambda self, logits: lambda row: bind(self, logits)(max(row - 1, ROOT)))


def compiled_positions_are_slots(patch: Patch) -> None:
    """In compiled steps the rotary position of a row is its slot."""
    make = CompiledSequence._plan

    def at_slots(self: CompiledSequence, *given: Any) -> Any:
        plan = make(self, *given)
        plan[POSITIONS] = plan[SLOTS]
        return plan

    patch.setattr(CompiledSequence, "_plan", at_slots)


def rejected_slots_stay_visible(patch: Patch) -> None:
    """In compiled steps later rows attend to the slots of rejected rows until these are overwritten."""
    keep = CompiledSequence.keep

    def keep_visible(self: CompiledSequence, path: Sequence[int]) -> None:
        keep(self, path)
        self._used[self._fed[1]] = True

    patch.setattr(CompiledSequence, "keep", keep_visible)


def accepted_slots_are_reused(patch: Patch) -> None:
    """In compiled steps the slots of accepted rows are reused."""
    keep = CompiledSequence.keep

    def keep_and_free(self: CompiledSequence, path: Sequence[int]) -> None:
        keep(self, path)
        self._free += self._fed[1]

    patch.setattr(CompiledSequence, "keep", keep_and_free)


def memory_is_not_handed_over(patch: Patch) -> None:
    """A sequence does not notice that another one has used its memory in between."""
    patch.setattr(CompiledSequence, "leave", lambda self: None)


Choose = Callable[[int], int]
Commit = Callable[[int], bool]


def verify_with_faults(
    draft: Draft,
    choose: Choose,
    commit: Commit,
    *,
    children: dict[int, dict[int, int]] | None = None,
    at_leaf: Callable[[int], dict[int, int] | None] = lambda row: {},
) -> Accepted:
    """Verify like the engine, with two injected faults: other ``children``, and children at leaves.

    ``at_leaf`` returns the children of a leaf; if it returns None, the leaf emits no bonus token.
    """
    children = draft.children if children is None else children
    row = ROOT
    path: list[int] = []
    tokens: list[int] = []
    while True:
        here = children.get(row) or at_leaf(row)
        if here is None:
            return Accepted(tuple(path), tuple(tokens))
        token = choose(row)
        tokens.append(token)
        if commit(token) or token not in here:
            return Accepted(tuple(path), tuple(tokens))
        row = here[token]
        path.append(row)


def with_row_indices(tree: Tree) -> Tree:
    return replace(tree, depths=np.arange(len(tree)))
