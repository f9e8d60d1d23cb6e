"""What a case needs: tiny models, a scripted drafter, custom processors and criteria."""

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria

from antiphon.accel.decoding.tokens import NO_TOKEN
from antiphon.accel.drafting.draft import ROOT, Accepted, Draft, Logits, Tokens
from antiphon.accel.engines.selection import select_engine
from antiphon.accel.engines.torch.engine import engine_of
from tests.accel.adversarial_heads import AdversarialHead
from tests.families.table import tiny_model
from tests.fuzz.case import SIZES, TRUTH, Case, Script
from tests.tiny import byte_tokenizer

TOKENIZER = byte_tokenizer()

DEVICE = "ANTIPHON_FUZZ_DEVICE"
"""Environment variable with the device of the models; default the CPU."""

MEMORY = 2**20
"""Bytes of OpenVINO's KV cache: enough for a few requests, so that sequences are evicted."""


def device() -> torch.device:
    """Return the device of the models."""
    return torch.device(os.environ.get(DEVICE, "cpu"))


@cache
def model_of(family: str, size: int, seed: int, attention: str) -> Any:
    """Return the tiny model of a case, made once, because making one takes longer than a case."""
    shapes: Sequence[dict[str, Any]] = ({}, *SIZES.get(family, ()))
    model: Any = tiny_model(family, seed, attn_implementation=attention, **shapes[size])
    return model.to(device())


@cache
def is_supported(model: Any) -> bool:
    """Return whether OpenVINO runs this model; the accepted reason not to is a limited time step of Mamba-2."""
    engine_of(model).head = AdversarialHead()  # so that the graph gives hidden states
    try:
        return select_engine(model, "openvino", memory=MEMORY).engine.name == "openvino"
    except ValueError as error:
        if "in prefills only" not in str(error):
            raise
        return False


class Scripted:
    """Drafts by scripts, one after the other: trees whose rows are correct or wrong as scripted."""

    def __init__(self, scripts: Sequence[Script], text: Tokens) -> None:
        self.scripts = scripts
        self.text = text
        self.turn = 0

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None: ...

    def propose(self, context: Tokens, budget: int) -> Draft:
        script = self.scripts[self.turn % len(self.scripts)]
        self.turn += 1
        parents = tuple(max(row - above, ROOT) for row, (above, _, _) in enumerate(script))
        shape = Draft((0,) * len(script), parents, tuple(chance for _, _, chance in script))
        tokens = (
            self._truth(len(context) + depth - 1) if token == TRUTH else token
            for depth, (_, token, _) in zip(shape.depths, script, strict=True)
        )
        return Draft(tuple(tokens), parents, shape.chances)

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None: ...

    def _truth(self, place: int) -> int:
        return self.text[place] if place < len(self.text) else 0


class Alphabet(LogitsProcessor):
    """Allows only a few tokens, so that repeats, ends, stop strings and wrong drafts are frequent."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        allowed = torch.full_like(scores, -torch.inf)
        allowed[:, self.tokens] = 0.0
        return scores + allowed


class Counting(LogitsProcessor):
    """A stateful processor: its scores depend on the number of calls; it records the texts that it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls.append(tuple(input_ids[0].tolist()))
        scores = scores * (1.0 + 0.1 * (len(self.calls) % 5))
        scores[:, len(self.calls) % 2 :: 7] -= 2.0
        return scores


class Echo(LogitsProcessor):
    """Prefers the last three tokens, weighted by a function of the whole text."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.clone()
        for weight, token in enumerate(input_ids[0, -3:].tolist()):
            scores[:, token] += 0.5 * weight + float(input_ids.sum() % 3)
        return scores


class Guard(LogitsProcessor):
    """Raises the error of a CPU if no token is possible: on a GPU, sampling would end the process's work there."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if scores.softmax(dim=-1).isnan().any():
            raise RuntimeError(NO_TOKEN)
        return scores


MOODS: dict[str, type[Counting | Echo]] = {"counting": Counting, "echo": Echo}


class Criterion(StoppingCriteria):
    """Ends generation after ``n`` calls, by the sum of ids, or after ``n`` zeros; records the texts of its calls."""

    def __init__(self, rule: str, n: int) -> None:
        self.rule = rule
        self.n = n
        self.asked: list[tuple[int, ...]] = []
        self.answer = False

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Any:
        text = input_ids[0].tolist()
        self.asked.append(tuple(text))
        answers = {
            "calls": len(self.asked) >= self.n,
            "sum": sum(text) % (3 * self.n) == 0,
            "zeros": text[-6:].count(0) >= self.n,
        }
        self.answer = answers[self.rule]
        return torch.tensor([self.answer], device=input_ids.device)


class Company:
    """The processors and criteria of one run: they keep state, so every run has its own."""

    def __init__(self, case: Case) -> None:
        self.moods: list[Any] = [MOODS[name]() for name in case.moods]
        self.processors: list[Any] = [*self.moods, *([Alphabet(case.alphabet)] if case.alphabet else [])]
        if case.draw is not None and device().type != "cpu":
            self.processors.append(Guard())
        self.criteria = [Criterion(*case.criterion)] if case.criterion else []

    @property
    def record(self) -> list[list[tuple[int, ...]]]:
        """The texts that each stateful processor and criterion was called with."""
        counting = [mood.calls for mood in self.moods if isinstance(mood, Counting)]
        return counting + [criterion.asked for criterion in self.criteria]
