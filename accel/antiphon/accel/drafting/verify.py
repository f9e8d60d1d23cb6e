"""Verification: which rows of a draft are accepted. Knows neither where drafts come from nor how a token is chosen."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.accel.drafting.draft import ROOT, Accepted, Draft


def walk(draft: Draft, choose: Callable[[int], int], commit: Callable[[int], bool]) -> Accepted:
    """Draw the model's own next token, then follow the child that guessed it.

    ``choose(row)`` is the model's token after that row: its argmax, or one draw from its processed distribution.
    Every token that is drawn is emitted, so the text and its law are the model's for any draft; at a node, a draft
    is accepted with the summed probability of its children, and no scheme for one-hot drafts accepts more.
    ``commit(token)`` makes it part of the text and says whether generation ends there: nothing is drawn after that.

    The greedy case is the acceptance rule of LLMA (section 3, algorithm 1); for sampling it has the same law as
    Lookahead decoding's algorithm 4, with one draw per emitted token.
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
