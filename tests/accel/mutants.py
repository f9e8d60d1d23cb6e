"""Faults put into the engine on purpose, each by one seam. Knows nothing of the tests that must notice them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from antiphon.accel.decoding import loop
from antiphon.accel.decoding.sampling import Sampler
from antiphon.accel.drafting.draft import ROOT, Accepted, Draft, Logits
from antiphon.accel.drafting.tree import AttentionSpan, Tree, build_tree
from antiphon.accel.engines.openvino.paged_memory import BlockMemory
from antiphon.accel.engines.torch import sequence
from antiphon.accel.engines.torch.compiled_sequence import CompiledSequence
from antiphon.accel.engines.torch.masks import attention_mask
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.engines.torch.slot_cache import PLACES, POSITIONS

Patch = pytest.MonkeyPatch


def position_is_the_slot(patch: Patch) -> None:
    """A row's rotary position is its place among the rows, not its depth: right for a chain."""
    patch.setattr(sequence, "build_tree", lambda pending, parents, pads: in_slots(build_tree(pending, parents, pads)))


def rows_see_no_ancestors(patch: Patch) -> None:
    """A draft row sees the confirmed tokens and itself."""

    def lonely(pending: int, parents: Sequence[int], pads: int) -> Tree:
        tree = build_tree(pending, parents, pads)
        sees = np.eye(len(tree), dtype=np.bool_)
        sees[:, :pending] = tree.ancestor_mask[:, :pending]
        return replace(tree, sees=sees)

    patch.setattr(sequence, "build_tree", lonely)


def rows_see_their_siblings(patch: Patch) -> None:
    """The mask is causal: a draft row sees every row before it."""

    def crowded(pending: int, parents: Sequence[int], pads: int) -> Tree:
        tree = build_tree(pending, parents, pads)
        return replace(tree, sees=np.tri(len(tree), dtype=np.bool_))

    patch.setattr(sequence, "build_tree", crowded)


def window_is_one_too_wide(patch: Patch) -> None:
    """A sliding layer looks one position further back than the model was made for."""

    def wide(tree: Tree, reach: AttentionSpan, **places: Any) -> Tensor:
        window = None if reach.window is None else reach.window + 1
        return attention_mask(tree, replace(reach, window=window), **places)

    patch.setattr(sequence, "attention_mask", wide)


def window_counts_slots(patch: Patch) -> None:
    """A sliding layer counts rows, not positions: siblings push the text out of the window."""
    patch.setattr(
        sequence, "attention_mask", lambda tree, reach, **places: attention_mask(in_slots(tree), reach, **places)
    )


def padding_is_seen(patch: Patch) -> None:
    """Draft rows attend to the left padding."""
    patch.setattr(
        sequence, "attention_mask", lambda tree, reach, **places: attention_mask(tree, reach, **places | {"padding": 0})
    )


def positions_count_the_padding(patch: Patch) -> None:
    """Positions begin at the first token of padding: no rotary model can tell, a learned position can."""

    class Shifted:
        def __init__(self, model: Any, by: int) -> None:
            self.model, self.by = model, by

        def __getattr__(self, name: str) -> Any:
            return getattr(self.model, name)

        def __call__(self, *, position_ids: Tensor, **given: Any) -> Any:
            return self.model(position_ids=position_ids + self.by, **given)

    make = TorchSequence.__init__

    def shifted(self: TorchSequence, model: Any, *given: Any, padding: int = 0, **named: Any) -> None:
        make(self, model, *given, padding=padding, **named)
        self.model = Shifted(model, padding)  # type: ignore[assignment]

    patch.setattr(TorchSequence, "__init__", shifted)


def eager_mask_is_boolean(patch: Patch) -> None:
    """Eager attention adds zeros and ones to its scores instead of zeros and the lowest number."""
    patch.setattr(sequence, "additive_mask", lambda sees, dtype: sees)


def first_rows_are_kept(patch: Patch) -> None:
    """As many rows are kept as were accepted, but the first ones, whichever these are."""
    keep = TorchSequence.keep
    patch.setattr(TorchSequence, "keep", lambda self, path: keep(self, range(len(path))))


def rejected_rows_stay(patch: Patch) -> None:
    """Every row that was drafted stays in the cache and counts as text."""
    forward, keep = TorchSequence.forward, TorchSequence.keep
    drafted: list[int] = []

    def noted(self: TorchSequence, pending: Sequence[int], draft: Draft) -> Tensor:
        drafted[:] = range(len(draft))
        return forward(self, pending, draft)

    patch.setattr(TorchSequence, "forward", noted)
    patch.setattr(TorchSequence, "keep", lambda self, path: keep(self, tuple(drafted)))


def cache_is_not_cropped(patch: Patch) -> None:
    """Rejected rows stay in the cache behind the text, and are not counted."""
    patch.setattr("antiphon.accel.engines.torch.cache_kinds._remove_last", lambda layer, count: None)
    patch.setattr("antiphon.accel.engines.torch.growing_cache.Buffer.crop", lambda self, tokens: None)


def accepted_rows_are_not_moved(patch: Patch) -> None:
    """Accepted rows are kept where they stood: the first ones are there instead."""
    patch.setattr("antiphon.accel.engines.torch.cache_kinds._move_up", lambda rows, stray, moved: None)


def accepted_rows_stay_in_their_blocks(patch: Patch) -> None:
    """OpenVINO's memory keeps accepted rows where the draft had them."""
    patch.setattr(BlockMemory, "move", lambda memory, sources, targets: None)


def state_is_not_rewound(patch: Patch) -> None:
    """Recurrent state goes on from the end of the draft, whatever of it was accepted."""
    forward, keep = TorchSequence.forward, TorchSequence.keep
    fed = [0, 0]

    def noted(self: TorchSequence, pending: Sequence[int], draft: Draft) -> Tensor:
        fed[:] = [len(pending), len(draft)]
        return forward(self, pending, draft)

    def unwound(self: TorchSequence, path: Sequence[int]) -> None:
        if self.level != "replay" or not fed[1]:
            return keep(self, path)
        self.length += fed[0] + len(path)
        return None

    patch.setattr(TorchSequence, "forward", noted)
    patch.setattr(TorchSequence, "keep", unwound)


def bonus_token_is_lost(patch: Patch) -> None:
    """A draft that holds to its leaf emits its own tokens alone, without the model's next one."""

    def stingy(draft: Draft, choose: Choose, commit: Commit) -> Accepted:
        accepted = stroll(draft, choose, commit, at_leaf=lambda row: None)
        return accepted if accepted.tokens else stroll(draft, choose, commit)

    patch.setattr(loop, "walk", stingy)


def text_goes_on_after_its_end(patch: Patch) -> None:
    """Whether the text has ended is looked at once a forward, after the whole accepted run."""

    def deaf(draft: Draft, choose: Choose, commit: Commit) -> Accepted:
        return stroll(draft, choose, lambda token: bool(commit(token)) and False)

    patch.setattr(loop, "walk", deaf)


def length_is_looked_at_per_forward(patch: Patch) -> None:
    """The same where drafts are not kept to the room that is left either: each of the two alone does no harm."""
    fit = TorchSequence.fit
    patch.setattr(TorchSequence, "fit", lambda self, draft, rows, depth, pending: fit(self, draft, rows, 99, pending))
    text_goes_on_after_its_end(patch)


def criteria_are_asked_per_forward(patch: Patch) -> None:
    """End tokens and length cut token by token, but custom criteria see whole accepted runs, as in transformers."""

    def patient(draft: Draft, choose: Choose, commit: Commit) -> Accepted:
        stop: Any = commit.__self__  # type: ignore[attr-defined]
        others, stop.others = stop.others, []
        accepted = stroll(draft, choose, commit)
        stop.others = others
        if others and bool(others(stop.transcript.ids, stop.scores()).all()):
            stop.finish = "stop"
        return accepted

    patch.setattr(loop, "walk", patient)


def likeliest_child_is_followed(patch: Patch) -> None:
    """After a right guess the walk goes on at the first child of the row, whether it is the one that guessed."""

    def sheepish(draft: Draft, choose: Choose, commit: Commit) -> Accepted:
        first = {row: dict.fromkeys(children, min(children.values())) for row, children in draft.children.items()}
        return stroll(draft, choose, commit, children=first)

    patch.setattr(loop, "walk", sheepish)


def padding_is_a_token(patch: Patch) -> None:
    """A leaf has a child after all, token id 0, as where paths are padded to one length (REST): its row is the last."""

    def padded(draft: Draft, choose: Choose, commit: Commit) -> Accepted:
        return stroll(draft, choose, commit, at_leaf=lambda row: {0: len(draft) - 1} if row != ROOT else {})

    patch.setattr(loop, "walk", padded)


def every_row_is_chosen(patch: Patch) -> None:
    """Processors are called and numbers drawn for all rows of a forward at once, rejected ones too."""
    over = Sampler.over

    def eager(self: Sampler, logits: Logits) -> Callable[[int], int]:
        choose = over(self, logits)
        tokens = [choose(row) for row in range(ROOT, len(logits) - 1)]
        return lambda row: tokens[row + 1]

    patch.setattr(Sampler, "over", eager)


def processors_miss_the_path(patch: Patch) -> None:
    """Processors see the text as it was before the forward, at every row of it."""
    over = Sampler.over

    def stale(self: Sampler, logits: Logits) -> Callable[[int], int]:
        known = self.transcript.ids.clone()
        processors = self.processors

        def choose(row: int) -> int:
            self.processors = lambda ids, scores: processors(known, scores)
            token = over(self, logits)(row)
            self.processors = processors
            return token

        return choose

    patch.setattr(Sampler, "over", stale)


def logits_are_the_rows_before(patch: Patch) -> None:
    """Behind a draft row stands the choice that belongs to the row before it."""
    over = Sampler.over
    patch.setattr(Sampler, "over", lambda self, logits: lambda row: over(self, logits)(max(row - 1, ROOT)))


def compiled_position_is_the_slot(patch: Patch) -> None:
    """In compiled steps a row's rotary position is the slot that it is written to."""
    make = CompiledSequence._plan

    def slotted(self: CompiledSequence, *given: Any) -> Any:
        plan = make(self, *given)
        plan[POSITIONS] = plan[PLACES]
        return plan

    patch.setattr(CompiledSequence, "_plan", slotted)


def rejected_slots_are_seen(patch: Patch) -> None:
    """In compiled steps the slots of rejected rows are shown to later rows, as long as nobody writes to them."""
    keep = CompiledSequence.keep

    def indulgent(self: CompiledSequence, path: Sequence[int]) -> None:
        keep(self, path)
        self._seen[self._fed[1]] = True

    patch.setattr(CompiledSequence, "keep", indulgent)


def kept_slots_are_written_again(patch: Patch) -> None:
    """In compiled steps the slots of accepted rows are free, too."""
    keep = CompiledSequence.keep

    def generous(self: CompiledSequence, path: Sequence[int]) -> None:
        keep(self, path)
        self._free += self._fed[1]

    patch.setattr(CompiledSequence, "keep", generous)


def memory_is_not_handed_over(patch: Patch) -> None:
    """A text that comes back to its memory does not look whether another one has had it in between."""
    patch.setattr(CompiledSequence, "leave", lambda self: None)


Choose = Callable[[int], int]
Commit = Callable[[int], bool]


def stroll(
    draft: Draft,
    choose: Choose,
    commit: Commit,
    *,
    children: dict[int, dict[int, int]] | None = None,
    at_leaf: Callable[[int], dict[int, int] | None] = lambda row: {},
) -> Accepted:
    """The engine's walk with openings for faults: other children, and what stands behind a leaf (None: no choice)."""
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


def in_slots(tree: Tree) -> Tree:
    return replace(tree, depths=np.arange(len(tree)))
