"""Verification: find the accepted rows of a draft, whatever drafter and sampler are used."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.accel.drafting.draft import ROOT, Accepted, Draft


def verify(draft: Draft, choose: Callable[[int], int], commit: Callable[[int], bool]) -> Accepted:
    """Follow the model's own tokens down the draft tree until one of them was not drafted.

    At every node the model's next token is chosen and emitted, so the text and its distribution do
    not depend on the draft. The probability that one of a node's children is accepted is the sum of
    the model's probabilities of these children. For drafts without probabilities, no verification
    scheme accepts more tokens. Greedy verification is the acceptance rule of LLMA (section 3,
    algorithm 1). Sampling has the distribution of Lookahead decoding's algorithm 4, with one random
    draw per emitted token.

    Args:
        choose: Function that returns the model's token after a row: the argmax, or a draw from the processed
            distribution.
        commit: Function that appends a token to the text and returns whether generation ends there.

    Returns:
        The accepted rows, and the emitted tokens: the tokens of these rows and the bonus token.
    """
    children = draft.children
    row = ROOT
    path: list[int] = []
    tokens: list[int] = []
    while True:
        token = choose(row)
        tokens.append(token)
        ended = commit(token)
        child = children.get(row, {}).get(token)
        if ended or child is None:
            return Accepted(tuple(path), tuple(tokens))
        path.append(child)
        row = child
