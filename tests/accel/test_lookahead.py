"""Lookahead decoding: its window and its n-gram pool, row by row, and its drafts."""

import torch
from torch import Tensor

from antiphon.accel.drafting.draft import EMPTY, Draft, Tokens, without_probes
from antiphon.accel.drafting.drafters import Blend, Lookahead
from antiphon.accel.drafting.drafters.lookahead import NGramPool
from antiphon.accel.drafting.tree import build_tree
from antiphon.accel.drafting.verify import verify
from antiphon.accel.engines.torch.logits import TorchLogits

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
