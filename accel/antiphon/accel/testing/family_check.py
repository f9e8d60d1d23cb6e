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
from antiphon.accel.engines.selection import EngineName, select_engine
from antiphon.accel.engines.torch.engine import traits_of
from antiphon.accel.engines.torch.traits import Traits
from antiphon.accel.generate import generate
from antiphon.accel.testing.drafters import OracleDrafter, RandomTreeDrafter, RecordedStep, RecordingDrafter
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
    "random trees": partial(RandomTreeDrafter, seed=1, vocabulary=VOCABULARY),
    "oracle": partial(OracleDrafter, depth=ORACLE_DEPTH),
    "blend": lambda text: Blend(),
}
"""Makes each drafter from the text that plain decoding gives: random trees around it, the text itself as a chain, and
the default drafter, which is not shown it."""


@dataclass(frozen=True, slots=True)
class ComparisonResult:
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
class OpenVINOResult:
    """A tiny model on OpenVINO: its trials by mode and drafter, or the ``reason`` why there are none.

    Where the text is longer than the ``window`` drafts are chains.
    """

    trials: Mapping[str, Mapping[str, ComparisonResult]]
    reason: str = ""
    window: int | None = None

    @property
    def holds(self) -> bool:
        """Whether every text and all logits are plain decoding's in torch; a family that stays on torch breaks none."""
        return all(trial.holds for trials in self.trials.values() for trial in trials.values())


@dataclass(frozen=True, slots=True)
class FamilyResult:
    """One tiny model of a family: what it can verify, its trials by mode and drafter, and those on OpenVINO."""

    family: str
    traits: Traits
    trials: Mapping[str, Mapping[str, ComparisonResult]]
    openvino: OpenVINOResult

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


def _figures(trials: Mapping[str, Mapping[str, ComparisonResult]]) -> dict[str, Any]:
    return {mode: {name: asdict(trial) for name, trial in row.items()} for mode, row in trials.items()}


def check_family(family: str) -> FamilyResult:
    """Build a family's tiny model and decode with each drafter beside plain decoding, greedy and sampled; on torch, and
    on OpenVINO where that takes it.

    Raises:
        ValueError: there is no such family.
    """
    model = tiny_model(family)
    trials = {mode: check_model(model, mode) for mode in MODES}
    return FamilyResult(family, traits_of(model), trials, check_on_openvino(model))


def check_on_openvino(model: PreTrainedModel) -> OpenVINOResult:
    """The same trials on OpenVINO, against plain decoding in torch."""
    try:
        select_engine(model, "openvino", memory=MEMORY)
    except ValueError as error:
        reason = str(error).partition(": ")[2].removeprefix("OpenVINO cannot run this model: ")
        return OpenVINOResult({}, reason.removesuffix("."))
    trials = {mode: check_model(model, mode, engine="openvino") for mode in MODES}
    windows = [reach.window for reach in traits_of(model).attention_spans.values() if reach.window]
    return OpenVINOResult(trials, window=min(windows, default=None))


def check_model(
    model: PreTrainedModel, mode: str, drafters: tuple[str, ...] = tuple(DRAFTERS), *, engine: EngineName = "torch"
) -> dict[str, ComparisonResult]:
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
) -> ComparisonResult:
    recorder = RecordingDrafter(make(plain.text))
    start = prompt.shape[1]
    references = [plain.text[start : start + 20], plain.text[start + 15 : start + 40]]
    torch.manual_seed(3)
    output: Any = generate(
        model, prompt, references=references, drafter=lambda: recorder, num_draft_tokens=ROWS, **options
    )
    same = output[0].tolist() == plain.text
    error = _error(model, plain, recorder.records, start) if same else float("inf")
    return ComparisonResult(same, len(plain.text) - start, len(recorder.records), error)


def _error(model: PreTrainedModel, plain: _Plain, records: list[RecordedStep], start: int) -> float:
    """The largest difference at the root and at every kept row, and in the first steps at every row."""
    errors = []
    for step, record in enumerate(records):
        kept = record.logits[[row + 1 for row in (ROOT, *record.accepted.path)]].float()
        for truth in (plain.logits, plain.whole):
            if truth is not None:
                errors.append(_distance(kept, truth[record.length - start :][: len(kept)]))
        if plain.whole is not None and step < EVERY_ROW:
            errors += _branches(model, plain.text[: record.length], record)
    return max(errors)


def _branches(model: PreTrainedModel, context: Tokens, record: RecordedStep) -> list[float]:
    """For each leaf of the draft: the difference of all rows down to it from one forward over context and path."""
    errors = []
    for leaf in set(range(len(record.draft))) - set(record.draft.parents):
        path = path_to(record.draft, leaf)
        truth = _uncached(model, [*context, *(record.draft.tokens[row] for row in path)])
        errors.append(_distance(record.logits[[row + 1 for row in path]].float(), truth[-len(path) :]))
    return errors


def _uncached(model: PreTrainedModel, tokens: Tokens) -> Tensor:
    logits: Tensor = model(torch.tensor([list(tokens)], device=model.device), use_cache=False).logits[0].float()
    return logits


def _distance(logits: Tensor, truth: Tensor) -> float:
    return float((logits - truth).abs().max())
