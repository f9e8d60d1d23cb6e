"""Lookahead decoding: its window and its n-gram pool, row by row, and its drafts."""

from random import Random

import pytest
import torch
from torch import Tensor

from antiphon.accel.drafting.draft import EMPTY, Accepted, Draft, Tokens, without_probes
from antiphon.accel.drafting.drafters import Blend, Lookahead, SuffixMatch
from antiphon.accel.drafting.drafters.lookahead import NGramPool, Window
from antiphon.accel.drafting.tree import Tree, build_tree
from antiphon.accel.drafting.verify import verify
from antiphon.accel.engines.torch.logits import TorchLogits
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.engines.torch.traits import declared_traits
from antiphon.accel.testing.tiny import tiny_model

TOY = 17


def toy_logits(context: Tokens, draft: Draft) -> Tensor:
    """Return logits of a model whose next token is the sum of visible token * position (from 1), modulo 17."""
    tree = build_tree(1, draft.parents)
    tokens = torch.tensor([context[-1], *draft.tokens])
    positions = torch.from_numpy(tree.depths) + len(context)
    before = sum(token * position for position, token in enumerate(context[:-1], 1))
    answers = before + torch.from_numpy(tree.ancestor_mask).long() @ (tokens * positions)
    return torch.nn.functional.one_hot(answers % TOY, TOY).float()


class ToyDecoding:
    """Decodes a text of the toy model with Lookahead, step by step."""

    def __init__(
        self, drafter: Lookahead, prompt: list[int], level: list[int] | None = None, *, accepts_window_rows: bool = True
    ) -> None:
        self.accepts_window_rows = accepts_window_rows
        self.drafter, self.context, self.prompt = drafter, list(prompt), len(prompt)
        self.draft = drafter.begin(prompt, ()) or EMPTY
        if level:
            assert drafter.window
            drafter.window.levels = [level]
            self.draft = drafter.propose(prompt, 99)
        self.steps = 0

    def step(self) -> tuple[int, ...]:
        """Run one forward pass and return the emitted tokens."""
        if self.steps:
            self.draft = self.drafter.propose(self.context, 99)
        logits = toy_logits(self.context, self.draft)
        verified = self.draft if self.accepts_window_rows else without_probes(self.draft)
        accepted = verify(verified, lambda row: int(logits[1 + row].argmax()), lambda token: False)
        self.drafter.observe(self.draft, accepted, TorchLogits(logits))
        self.context += accepted.tokens
        self.steps += 1
        return accepted.tokens

    def until(self, length: int) -> list[int]:
        """Decode until there are ``length`` tokens after the prompt and return them."""
        while len(self.context) - self.prompt < length:
            self.step()
        return self.context[self.prompt :][:length]


def plain_tokens(prompt: list[int], length: int) -> list[int]:
    context = list(prompt)
    for _ in range(length):
        context.append(int(toy_logits(context, EMPTY)[0].argmax()))
    return context[len(prompt) :]


STEPS: list[tuple[tuple[int, int], list[list[int]], list[int]]] = [
    # (root, its position), levels of the window before the step, emitted tokens
    ((5, 4), [[1, 5, 3, 4]], [12]),
    ((12, 5), [[5, 3, 4], [1, 2, 9, 11]], [16]),
    ((16, 6), [[3, 4], [2, 9, 11], [16, 3, 0]], [9]),
    ((9, 7), [[9, 11], [16, 3, 0], [16, 8, 9]], [13]),
    ((13, 8), [[3, 0], [16, 8, 9], [11, 8, 6]], [11]),
    ((11, 9), [[8, 9], [11, 8, 6], [3, 4, 6]], [2]),
]


def test_the_worked_example_is_reproduced_step_by_step() -> None:
    """Settings: W=3, N=4, G=2, prompt 3 1 4 1 5, level 0 given instead of random, no n-grams from the prompt."""
    drafter = Lookahead(3, 4, 2, prompt_as_reference=False)
    decoding = ToyDecoding(drafter, [3, 1, 4, 1, 5], [1, 5, 3, 4])
    for number, (root, window, emitted) in enumerate(STEPS):
        assert (decoding.context[-1], len(decoding.context) - 1) == root
        assert drafter.window is not None
        assert drafter.window.levels == window
        candidates = drafter.propose(decoding.context, 99)
        assert candidates.tokens[: candidates.num_candidates] == ((0, 9, 6) if number == 5 else ())
        assert list(decoding.step()) == emitted
        if number == 2:
            assert list(drafter.pool) == [(16, 2, 16, 16), (3, 9, 3, 8), (4, 11, 0, 9)]
    assert drafter.pool.lookup(9) == [(3, 8, 8), (6, 6, 3)], "16 16 11 was the oldest"
    assert decoding.until(12) == [12, 16, 9, 13, 11, 2, 7, 6, 16, 2, 15, 0] == plain_tokens([3, 1, 4, 1, 5], 12)
    assert decoding.steps == 10, "11 in the paper, minus one because rows of the window were accepted"


def test_if_only_n_grams_are_accepted_the_worked_example_takes_the_papers_eleven_steps() -> None:
    decoding = ToyDecoding(
        Lookahead(3, 4, 2, prompt_as_reference=False), [3, 1, 4, 1, 5], [1, 5, 3, 4], accepts_window_rows=False
    )
    assert decoding.until(12) == plain_tokens([3, 1, 4, 1, 5], 12)
    assert decoding.steps == 11


def test_rows_of_the_worked_example_have_the_positions_and_ancestors_of_its_table() -> None:
    window = Window(3, 4, [1], Random(0))
    window.levels = [[3, 4], [2, 9, 11], [16, 3, 0]]
    draft = window.draft(range(3))
    tree = build_tree(1, draft.parents)
    assert rows_of(draft, tree, root=6) == [
        (3, 7, []), (4, 8, [1]), (2, 7, []), (9, 8, [1]), (11, 9, [1, 2]), (16, 8, [3]), (3, 9, [1, 4]),
        (0, 10, [1, 2, 5]),
    ]  # fmt: skip
    assert draft.num_probes == len(draft) == 8


def rows_of(draft: Draft, tree: Tree, root: int) -> list[tuple[int, int, list[int]]]:
    """Return the token of every row, its position, and its ancestors below the root, counted from 1."""
    return [
        (token, root + int(tree.depths[row]), [other for other in range(1, row) if tree.ancestor_mask[row, other]])
        for row, token in enumerate(draft.tokens, 1)
    ]


@pytest.mark.parametrize(
    ("width", "size", "guesses"), [(3, 4, 2), (7, 5, 7), (1, 2, 1), (1, 5, 3), (4, 2, 0), (2, 3, 5)]
)
def test_every_window_has_the_papers_size_and_no_draft_exceeds_max_rows(width: int, size: int, guesses: int) -> None:
    drafter = Lookahead(width, size, guesses)
    decoding = ToyDecoding(drafter, list(range(1, 12)))
    for step in range(size + 20):
        assert drafter.window is not None
        lengths = [len(level) for level in drafter.window.levels]
        if step < size - 2:
            assert lengths == [width + size - 3 - step] + [width + size - 2 - step] * step
        else:
            assert lengths == [width - 1] + [width] * (size - 2)
            probes = len(drafter.window.draft(range(width)))
            assert 1 + probes == width * (size - 1), "the root and the window"
            assert drafter.max_rows >= probes + (size - 1) * guesses
        decoding.step()
        assert len(decoding.draft) <= drafter.max_rows
    assert Lookahead(7, 5, 7).max_rows == 7 * 4 + 4 * 7 - 1


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_full_match_emits_n_tokens(size: int) -> None:
    prompt = [3, 1, 4, 1, 5]
    truth = [prompt[-1], *plain_tokens(prompt, 60)]
    drafter = Lookahead(1, size, 1, prompt_as_reference=False)
    decoding = ToyDecoding(drafter, prompt)
    for _ in range(8):
        position = len(decoding.context) - len(prompt)
        drafter.pool.add(truth[position : position + size])
        decoding.draft = drafter.propose(decoding.context, 99)
        decoding.steps = max(decoding.steps, 1)
        assert len(ToyDecoding.step(decoding)) == size


def test_the_n_grams_of_the_prompt_are_drafted_in_the_first_forward_pass() -> None:
    prompt = plain_tokens([3, 1, 4], 24)
    text = prompt + plain_tokens(prompt, 4)
    assert not without_probes(Lookahead(2, 5, 2, prompt_as_reference=False).begin(prompt, ()) or EMPTY)
    opening = Lookahead(2, 5, 2).begin(prompt, [text[-5:]])
    assert opening is not None
    assert opening.tokens[: opening.num_candidates][:4] == tuple(text[-4:])
    assert opening.num_probes == len(opening) - opening.num_candidates > 0


def test_a_column_affects_only_itself_and_columns_to_its_right() -> None:
    def answers(levels: list[list[int]]) -> list[int]:
        drafter = Lookahead(4, 4, 0, prompt_as_reference=False)
        drafter.begin([2, 7, 1, 8], ())
        assert drafter.window is not None
        drafter.window.levels = levels
        draft = drafter.propose([2, 7, 1, 8], 0)
        return drafter.answers(draft, TorchLogits(toy_logits([2, 7, 1, 8], draft)), range(4))

    levels = [[3, 4, 5], [2, 9, 11, 6], [16, 3, 0, 1]]
    before = answers(levels)
    for level, column, changed in [(1, 2, {2}), (2, 0, {0}), (2, 3, {3}), (0, 1, {2, 3})]:
        other = [list(row) for row in levels]
        other[level][column] += 1
        after = answers(other)
        assert {j for j in range(4) if after[j] != before[j]} == changed, (level, column)


def test_a_window_that_was_not_verified_does_not_advance() -> None:
    drafter = Lookahead(3, 4, 2, prompt_as_reference=False)
    drafter.begin([3, 1, 4, 1, 5], ())
    assert drafter.window is not None
    before = drafter.window.levels
    drafter.observe(EMPTY, Accepted((), (12,)), TorchLogits(toy_logits([3, 1, 4, 1, 5], EMPTY)))
    drafter.observe(EMPTY, Accepted((), (16,)), None)
    assert drafter.window.levels == before
    assert drafter.propose([3, 1, 4, 1, 5, 12, 16], 9).num_probes == 4


def test_the_pool_keeps_the_newest_n_grams_of_each_token_and_lookups_do_not_reorder() -> None:
    pool = NGramPool(2)
    for ngram in ([5, 1, 1], [5, 2, 2], [6, 0, 0], [5, 1, 1]):
        pool.add(ngram)
    assert pool.lookup(5) == [(2, 2), (1, 1)]
    assert pool.lookup(5) == pool.lookup(5)
    pool.add([5, 3, 3])
    assert pool.lookup(5) == [(1, 1), (3, 3)], "2 2 was the oldest, because 1 1 was added again"
    assert (pool.lookup(6), pool.lookup(7)) == ([(0, 0)], [])
    pool.add_all([5, 9, 8, 7], 3)
    assert list(pool) == [(5, 3, 3), (5, 9, 8), (6, 0, 0), (9, 8, 7)]


@pytest.mark.parametrize("prompt_as_reference", [False, True])
def test_n_grams_of_the_answer_are_pooled_with_prompt_as_reference(prompt_as_reference: bool) -> None:
    drafter = Lookahead(1, 3, 9, prompt_as_reference=prompt_as_reference)
    drafter.begin([1, 2], ())
    drafter.observe(EMPTY, Accepted((), (3, 4, 5)), None)
    drafter.observe(EMPTY, Accepted((), (6,)), None)
    assert list(drafter.pool) == ([(1, 2, 3), (2, 3, 4), (3, 4, 5), (4, 5, 6)] if prompt_as_reference else [])


def test_n_grams_of_one_token_share_their_common_prefix() -> None:
    drafter = Lookahead(1, 4, 4, prompt_as_reference=False)
    drafter.begin([5], ())
    for ngram in ([5, 1, 2, 3], [5, 1, 2, 4], [5, 7, 7, 7]):
        drafter.pool.add(ngram)
    draft = without_probes(drafter.propose([5], 99))
    assert (draft.tokens, draft.parents) == ((7, 7, 7, 1, 2, 4, 3), (-1, 0, 1, -1, 3, 4, 4)), "the newest first"
    assert draft.chances[3] == pytest.approx(2 * draft.chances[0])


@pytest.mark.parametrize("given", [{"window": 0}, {"ngram": 1}, {"guesses": -1}])
def test_settings_out_of_range_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(
        ValueError, match="give a window of at least 1 column, n-grams of at least 2 tokens, and at least 0 guesses"
    ):
        Lookahead(**given)  # type: ignore[arg-type]


def test_the_first_window_depends_on_the_seed_alone() -> None:
    def first(seed: int) -> list[list[int]]:
        drafter = Lookahead(9, 5, seed=seed)
        drafter.begin(range(100), ())
        assert drafter.window is not None
        return drafter.window.levels

    assert first(1) == first(1) != first(2)


@torch.no_grad()
def test_no_row_of_the_window_changes_the_logits_after_confirmed_or_drafted_tokens() -> None:
    model = tiny_model()
    traits, prompt = declared_traits(model), [7, 3, 9, 4, 7, 3, 9, 1, 7, 3]
    drafter = Lookahead(5, 4, 3)
    drafter.begin(prompt, ())
    assert drafter.window is not None
    answers = []
    for shift in (0, 1, 90):
        drafter.window.levels = [[10 * level + j + shift for j in range(4 + (level > 0))] for level in range(3)]
        draft = drafter.propose(prompt, 99)
        assert (draft.num_candidates, draft.num_probes) == (5, 14)
        cached = TorchSequence(model, traits)
        cached.prefill(prompt[:-1])
        cached.keep(())
        answers.append(cached.forward(prompt[-1:], draft)[: 1 + draft.num_candidates])
        cached.keep(range(draft.num_candidates)[:2])
        answers[-1] = torch.cat([answers[-1], cached.forward([5], EMPTY)])
    for other in answers[1:]:
        torch.testing.assert_close(other, answers[0], atol=2e-5, rtol=1e-5)


def test_in_a_blend_the_window_is_used_only_without_references_and_if_it_fits() -> None:
    prompt = list(range(40))
    blend = Blend(window=(5, 3, 5))
    assert blend.begin(prompt, []).num_probes > 0
    draft = blend.propose(prompt, 32)
    assert draft.num_probes == len(Lookahead(5, 3, 5).begin(prompt, []) or ()) > 0
    assert len(draft) <= 32
    assert blend.propose(prompt, 4).num_probes == 0
    assert blend.begin(prompt, [[1, 2, 3]]).num_probes == 0
    assert blend.propose(prompt, 32).num_probes == 0


def test_in_a_blend_more_valuable_rows_displace_the_window() -> None:
    prompt = [token for _ in range(12) for token in (1, 2, 3, 4)]
    blend = Blend(drafter=SuffixMatch(recycling=False), window=(5, 3, 5))
    blend.begin(prompt, [])
    assert blend.propose(prompt, 12).num_probes == 0, "12 copied rows of one likely chain are worth more"
    assert blend.propose(prompt, 32).num_probes > 0, "the last copied rows are less likely"
