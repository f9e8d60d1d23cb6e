"""A trial: drafted decoding beside plain decoding, token by token and logit by logit. Knows no family by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.accel.drafting.draft import ROOT, Drafter, Tokens, path_to
from antiphon.accel.drafting.drafters.blend import Blend
from antiphon.accel.engines.selection import EngineName, select
from antiphon.accel.engines.torch.engine import traits_of
from antiphon.accel.engines.torch.traits import Traits
from antiphon.accel.generate import generate
from antiphon.accel.testing.adversary import Oracle, Sight, Thicket, Witness
from antiphon.accel.testing.tiny import VOCABULARY, tiny_model

TOLERANCE = 2e-4
"""How far a logit may lie from plain decoding's in float32: rounding stays far below it, a wrong mask far above."""

PROMPT_TOKENS, NEW_TOKENS = 40, 48
ROWS = 32
MEMORY = 2**23
"""Bytes of keys and values on OpenVINO, which a tiny model fills by far not."""

ORACLE_DEPTH = 5
EVERY_ROW = 3
"""In so many first steps the rows that are not accepted are compared as well."""

MODES: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 0.9, "top_k": 30, "top_p": 0.95},
}

DRAFTERS: Mapping[str, Callable[[Tokens], Drafter]] = {
    "thicket": partial(Thicket, seed=1, vocabulary=VOCABULARY),
    "oracle": partial(Oracle, depth=ORACLE_DEPTH),
    "blend": lambda text: Blend(),
}
"""Makes each drafter from the text that plain decoding gives: random trees around it, the text itself as a chain, and
the default drafter, which is not shown it."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What drafted decoding gave beside plain decoding of the same prompt.

    ``error`` is the largest difference of a logit from plain decoding's and, where rotary frequencies do not depend on
    the length, from one forward without a cache; infinite where the texts differ.
    """

    same: bool
    tokens: int
    steps: int
    error: float

    @property
    def holds(self) -> bool:
        """Whether the text is plain decoding's, and every logit behind it too, up to rounding."""
        return self.same and self.error < TOLERANCE


@dataclass(frozen=True, slots=True)
class OpenVINOTrial:
    """A tiny model on OpenVINO: its trials by mode and drafter, or the ``reason`` why there are none.

    Where the text is longer than the ``window`` drafts are chains.
    """

    trials: Mapping[str, Mapping[str, Trial]]
    reason: str = ""
    window: int | None = None

    @property
    def holds(self) -> bool:
        """Whether every text and all logits are plain decoding's in torch; a family that stays on torch breaks none."""
        return all(trial.holds for trials in self.trials.values() for trial in trials.values())


@dataclass(frozen=True, slots=True)
class FamilyTrial:
    """One tiny model of a family: what it can verify, its trials by mode and drafter, and those on OpenVINO."""

    family: str
    traits: Traits
    trials: Mapping[str, Mapping[str, Trial]]
    openvino: OpenVINOTrial

    @property
    def error(self) -> float:
        """The largest difference of a logit in any of the trials."""
        return max(trial.error for trials in self.trials.values() for trial in trials.values())

    def holds(self, mode: str) -> bool:
        """Whether every drafter left text and logits as plain decoding has them."""
        return all(trial.holds for trial in self.trials[mode].values())

    def as_dict(self) -> dict[str, Any]:
        """Family, level, reason and every trial under its names, for JSON."""
        facts = {"family": self.family, "level": self.traits.level, "reason": self.traits.reason}
        paged = {"reason": self.openvino.reason, "window": self.openvino.window} | _figures(self.openvino.trials)
        return facts | _figures(self.trials) | {"openvino": paged}


def _figures(trials: Mapping[str, Mapping[str, Trial]]) -> dict[str, Any]:
    return {mode: {name: asdict(trial) for name, trial in row.items()} for mode, row in trials.items()}


def try_family(family: str) -> FamilyTrial:
    """Build a family's tiny model and decode with each drafter beside plain decoding, greedy and sampled; on torch, and
    on OpenVINO where that takes it.

    Raises:
        ValueError: there is no such family.
    """
    model = tiny_model(family)
    trials = {mode: try_model(model, mode) for mode in MODES}
    return FamilyTrial(family, traits_of(model), trials, try_on_openvino(model))


def try_on_openvino(model: PreTrainedModel) -> OpenVINOTrial:
    """The same trials on OpenVINO, against plain decoding in torch."""
    try:
        select(model, "openvino", memory=MEMORY)
    except ValueError as error:
        reason = str(error).partition(": ")[2].removeprefix("OpenVINO cannot run this model: ")
        return OpenVINOTrial({}, reason.removesuffix("."))
    trials = {mode: try_model(model, mode, engine="openvino") for mode in MODES}
    windows = [reach.window for reach in traits_of(model).reaches.values() if reach.window]
    return OpenVINOTrial(trials, window=min(windows, default=None))


def try_model(
    model: PreTrainedModel, mode: str, drafters: tuple[str, ...] = tuple(DRAFTERS), *, engine: EngineName = "torch"
) -> dict[str, Trial]:
    """Decode one prompt plainly in torch, then with each drafter from the same random state, and compare."""
    tokens = torch.randint(1, 250, (1, PROMPT_TOKENS), generator=torch.Generator().manual_seed(3))
    options = {"max_new_tokens": NEW_TOKENS, "eos_token_id": None, "use_cache": True, **MODES[mode]}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        plain = _decode_plainly(model, tokens, options)
        return {name: _try(model, tokens, options | {"engine": engine}, plain, DRAFTERS[name]) for name in drafters}


@dataclass(frozen=True, slots=True)
class _Plain:
    """The text, the logits behind each new token, and those of one forward over the text where that is comparable."""

    text: list[int]
    logits: Tensor
    whole: Tensor | None


def _decode_plainly(model: Any, prompt: Tensor, options: Mapping[str, Any]) -> _Plain:
    torch.manual_seed(3)
    output = model.generate(prompt, return_dict_in_generate=True, output_logits=True, **options)
    text = output.sequences[0].tolist()
    # Where frequencies depend on the longest position, the cached keys of early tokens are not those of one forward.
    whole = None if traits_of(model).rope else _uncached(model, text)[prompt.shape[1] - 1 : -1]
    return _Plain(text, torch.cat(output.logits), whole)


def _try(
    model: PreTrainedModel,
    prompt: Tensor,
    options: Mapping[str, Any],
    plain: _Plain,
    make: Callable[[Tokens], Drafter],
) -> Trial:
    witness = Witness(make(plain.text))
    start = prompt.shape[1]
    references = [plain.text[start : start + 20], plain.text[start + 15 : start + 40]]
    torch.manual_seed(3)
    output: Any = generate(model, prompt, references=references, drafter=lambda: witness, rows=ROWS, **options)
    same = output[0].tolist() == plain.text
    error = _error(model, plain, witness.sights, start) if same else float("inf")
    return Trial(same, len(plain.text) - start, len(witness.sights), error)


def _error(model: PreTrainedModel, plain: _Plain, sights: list[Sight], start: int) -> float:
    """The largest difference at the root and at every kept row, and in the first steps at every row."""
    errors = []
    for step, sight in enumerate(sights):
        kept = sight.logits[[row + 1 for row in (ROOT, *sight.accepted.path)]].float()
        for truth in (plain.logits, plain.whole):
            if truth is not None:
                errors.append(_distance(kept, truth[sight.length - start :][: len(kept)]))
        if plain.whole is not None and step < EVERY_ROW:
            errors += _branches(model, plain.text[: sight.length], sight)
    return max(errors)


def _branches(model: PreTrainedModel, context: Tokens, sight: Sight) -> list[float]:
    """For each leaf of the draft: the difference of all rows down to it from one forward over context and path."""
    errors = []
    for leaf in set(range(len(sight.draft))) - set(sight.draft.parents):
        path = path_to(sight.draft, leaf)
        truth = _uncached(model, [*context, *(sight.draft.tokens[row] for row in path)])
        errors.append(_distance(sight.logits[[row + 1 for row in path]].float(), truth[-len(path) :]))
    return errors


def _uncached(model: PreTrainedModel, tokens: Tokens) -> Tensor:
    logits: Tensor = model(torch.tensor([list(tokens)], device=model.device), use_cache=False).logits[0].float()
    return logits


def _distance(logits: Tensor, truth: Tensor) -> float:
    return float((logits - truth).abs().max())
