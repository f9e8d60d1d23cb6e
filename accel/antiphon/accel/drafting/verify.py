"""Verification: which rows of a draft are accepted. Independent of drafters and of how a token is chosen."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.accel.drafting.draft import ROOT, Accepted, Draft


def verify(draft: Draft, choose: Callable[[int], int], commit: Callable[[int], bool]) -> Accepted:
    """Follow the model's own tokens down the draft tree until one of them was not drafted.

    At every node the model's next token is drawn and emitted, so the text and its distribution are the model's for any
    draft. At a node, the probability that a child is accepted is the sum of the model's probabilities of the children;
    no scheme for drafts without probabilities accepts more. The greedy case is the acceptance rule of LLMA (section 3,
    algorithm 1). For sampling, the distribution is that of Lookahead decoding's algorithm 4, with one draw per emitted
    token.

    Args:
        choose: Returns the model's token after a row: its argmax, or one draw from its processed distribution.
        commit: Appends a token to the text and returns whether generation ends there; then no further token is drawn.

    Returns:
        The accepted rows, and the emitted tokens: those of the rows and the bonus token.
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
