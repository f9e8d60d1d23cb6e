"""Sampling with drafts keeps the distribution: exactly for a toy model, by chi-square and seed for a real one."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessorList, TopKLogitsWarper

from antiphon.accel.decoding.tokens import Sampler, TokenHistory
from antiphon.accel.drafting.draft import ROOT, Draft, chain, merge, trim
from antiphon.accel.drafting.verify import verify
from antiphon.accel.engines.torch.engine import traits_of
from antiphon.accel.engines.torch.logits import TorchLogits
from antiphon.accel.engines.torch.sequence import TorchSequence
from tests.accel.oracles import plain_logits, spelled
from tests.chi_square import p_value
from tests.tiny import tiny_model

pytestmark = pytest.mark.slow

Text = tuple[int, ...]
Law = dict[Text, Fraction]
LENGTH = 4
"""Length of a toy text over three tokens: 81 texts."""


def toy(context: Text) -> list[Fraction]:
    """The toy model: a different exact distribution after every text; some exclude a token."""
    chance = random.Random(repr(context))
    weights = [chance.randint(0, 6) for _ in range(3)]
    weights[chance.randrange(3)] += 1
    return [Fraction(weight, sum(weights)) for weight in weights]


def plain_law(context: Text = ()) -> Law:
    if len(context) == LENGTH:
        return {context: Fraction(1)}
    law: Law = {}
    for token, p in enumerate(toy(context)):
        for text, q in plain_law((*context, token)).items() if p else ():
            law[text] = law.get(text, Fraction(0)) + p * q
    return law


class ForkError(Exception):
    """Raised at a draw whose token is not given yet; the caller then tries every token."""


def outcomes(draft: Draft, context: Text) -> Iterator[tuple[Text, Fraction]]:
    """Return every context that can result from one step, with its probability over all draws."""
    tapes: list[tuple[Text, Fraction]] = [((), Fraction(1))]
    while tapes:
        tape, p = tapes.pop()
        text = list(context)
        answers = iter(tape)

        def choose(row: int, answers: Iterator[int] = answers) -> int:
            token = next(answers, None)
            if token is None:
                raise ForkError(row)
            return token

        def commit(token: int, text: list[int] = text) -> bool:
            text.append(token)
            return len(text) == LENGTH

        try:
            verify(draft, choose, commit)
        except ForkError as fork:
            law = toy((*context, *spelled(draft, fork.args[0])))  # logits of the row where the draw happened
            tapes += [((*tape, token), p * q) for token, q in enumerate(law) if q]
        else:
            yield tuple(text), p


def drafted_law(drafter: Callable[[Text], Draft], context: Text = ()) -> Law:
    """Return the distribution of whole texts that are decoded step by step, each step with a draft."""
    if len(context) == LENGTH:
        return {context: Fraction(1)}
    step: Law = {}
    for text, p in outcomes(drafter(context), context):
        step[text] = step.get(text, Fraction(0)) + p
    law: Law = {}
    for text, p in step.items():
        for whole, q in drafted_law(drafter, text).items():
            law[whole] = law.get(whole, Fraction(0)) + p * q
    return law


def bush(context: Text, seed: int, rows: int) -> Draft:
    chance = random.Random(f"{seed}{context}")
    parents = [chance.randint(ROOT, row - 1) for row in range(rows)]
    tokens = [chance.randrange(3) for _ in range(rows)]
    return Draft(tuple(tokens), tuple(parents), tuple(chance.random() for _ in range(rows)))


SHAPES: dict[str, Callable[[Text], Draft]] = {
    "nothing": lambda context: Draft(),
    "a deep chain": lambda context: chain([(len(context) + i) % 3 for i in range(6)]),
    "all three tokens": lambda context: Draft((0, 1, 2), (-1, -1, -1), (1.0,) * 3),
    "duplicate siblings": lambda context: Draft((1, 1, 0, 2, 1, 0), (-1, -1, 0, 1, 2, 4), (1.0,) * 6),
    "a bush": lambda context: bush(context, 1, 7),
    "a large bush": lambda context: bush(context, 2, 16),
    "a trimmed bush": lambda context: trim(bush(context, 3, 16), 5, 3),
    "merged bushes": lambda context: merge(bush(context, 4, 6), bush(context, 5, 6)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_drafts_of_any_shape_leave_the_distribution_of_a_toy_model_unchanged(shape: str) -> None:
    assert drafted_law(SHAPES[shape]) == plain_law()


DRAWS = 4_000
ODDS = 1e-6
PROMPT = torch.randint(1, 250, (1, 12), generator=torch.Generator().manual_seed(8))


def warped(model: Any, text: list[int]) -> Tensor:
    """Return the exact distribution of the next token with top-k 4, from a plain forward pass."""
    scores: Any = TopKLogitsWarper(4)(torch.tensor([text]), plain_logits(model, text)[-1:])
    law: Tensor = scores[0].double().softmax(dim=-1)
    return law


def draft_for(model: Any, prompt: list[int]) -> Draft:
    """Return a tree of likely first tokens (the second one occurs twice), with likely next tokens below them."""
    first: list[int] = warped(model, prompt).argsort(descending=True)[:3].tolist()
    second = [int(warped(model, [*prompt, token]).argmax()) for token in first[:2]]
    return Draft((first[1], first[0], first[1], *second, 7), (-1, -1, -1, 1, 0, 3), (1.0,) * 6)


def exact_law(model: Any, prompt: list[int], draft: Draft) -> dict[Text, float]:
    """Return the probability of every run that one step can emit: it ends with the first token that was not drafted."""
    law: dict[Text, float] = {}
    open_rows: list[tuple[int, Text, float]] = [(ROOT, (), 1.0)]
    while open_rows:
        row, said, p = open_rows.pop()
        following = warped(model, [*prompt, *said])
        for token in following.nonzero().flatten().tolist():
            q = p * float(following[token])
            child = draft.children.get(row, {}).get(token)
            if child is None:
                law[(*said, token)] = q
            else:
                open_rows.append((child, (*said, token), q))
    return law


def drawn(model: Any, prompt: list[int], draft: Draft) -> Counter[Text]:
    """Run one forward pass over the draft, then sample and verify repeatedly; yield the emitted tokens each time."""
    cached = TorchSequence(model, traits_of(model))
    with torch.no_grad():
        cached.prefill(prompt[:-1])
        cached.keep(())
        logits = cached.forward(prompt[-1:], draft)
    seen: Counter[Text] = Counter()
    generator = torch.Generator().manual_seed(20)
    for _ in range(DRAWS):
        transcript = TokenHistory(torch.tensor([prompt]))
        chooser = Sampler(transcript, LogitsProcessorList([TopKLogitsWarper(4)]), sample=True, generator=generator)
        said: list[int] = []
        verify(draft, chooser.bind(TorchLogits(logits)), lambda token, said=said: bool(said.append(token)))  # type: ignore[misc]
        seen[tuple(said)] += 1
    return seen


def test_four_thousand_drafted_samples_of_a_model_fit_its_exact_distribution() -> None:
    model, prompt = tiny_model(seed=11), PROMPT[0].tolist()
    draft = draft_for(model, prompt)
    law = exact_law(model, prompt, draft)
    assert abs(sum(law.values()) - 1) < 1e-9
    assert len(law) > 10
    p = p_value(law, drawn(model, prompt, draft))
    assert p > ODDS, f"p is {p:.2g}; with another seed an engine that is right fails once in {1 / ODDS:,.0f} runs"
