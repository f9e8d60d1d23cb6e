"""Compares drafted with plain decoding, token by token and logit by logit, on tiny models of all families."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from tests.accel.adversarial_drafters import OracleDrafter, RandomTreeDrafter, RecordedStep, RecordingDrafter
from tests.families.table import tiny_model
from tests.tiny import VOCAB_SIZE

TOLERANCE = 2e-4
"""Largest allowed difference of a logit in float32: rounding is far below, a wrong mask or position far above it."""

PROMPT_TOKENS, NEW_TOKENS = 40, 48
ROWS = 32
MEMORY = 2**23
"""KV cache of a tiny model on OpenVINO in bytes, more than enough."""

ORACLE_DEPTH = 5
FULLY_CHECKED_STEPS = 3
"""In this many steps at the beginning, rejected rows are compared as well."""

MODES: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 0.9, "top_k": 30, "top_p": 0.95},
}

DRAFTERS: Mapping[str, Callable[[Tokens], Drafter]] = {
    "random trees": partial(RandomTreeDrafter, seed=1, vocab_size=VOCAB_SIZE),
    "oracle": partial(OracleDrafter, depth=ORACLE_DEPTH),
    "blend": lambda text: Blend(),
}
"""Creates each drafter from the text of plain decoding: random trees around it, the text itself as a chain, and the
default drafter, which does not know it."""


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """Drafted decoding compared with plain decoding; ``error`` is the largest difference of a logit."""

    same: bool
    tokens: int
    steps: int
    error: float

    @property
    def passes(self) -> bool:
        """Whether all tokens are equal, and all logits up to rounding."""
        return self.same and self.error < TOLERANCE


@dataclass(frozen=True, slots=True)
class OpenVINOResult:
    """The comparisons on OpenVINO, by mode and drafter; or why it does not run the model.

    Attributes:
        window: The model's smallest window in tokens; None without windows.
        switch: The position at which its rotary frequencies change; None if they do not.
    """

    results: Mapping[str, Mapping[str, ComparisonResult]]
    reason: str = ""
    window: int | None = None
    switch: int | None = None

    @property
    def passes(self) -> bool:
        """Whether all comparisons with torch pass; True for a family that stays on torch."""
        return all(result.passes for results in self.results.values() for result in results.values())


@dataclass(frozen=True, slots=True)
class FamilyResult:
    """The comparisons of a family's tiny model, by mode and drafter."""

    family: str
    traits: Traits
    results: Mapping[str, Mapping[str, ComparisonResult]]
    openvino: OpenVINOResult

    @property
    def error(self) -> float:
        """Largest difference of a logit in all comparisons on torch."""
        return max(result.error for results in self.results.values() for result in results.values())

    def passes(self, mode: str) -> bool:
        """Return whether the comparisons of all drafters pass in a mode ("greedy" or "sampled")."""
        return all(result.passes for result in self.results[mode].values())


def check_family(family: str) -> FamilyResult:
    """Compare drafted with plain decoding on a family's tiny model, on torch and, if possible, on OpenVINO."""
    model = tiny_model(family)
    results = {mode: check_model(model, mode) for mode in MODES}
    return FamilyResult(family, traits_of(model), results, check_on_openvino(model))


def check_on_openvino(model: PreTrainedModel) -> OpenVINOResult:
    """Compare drafted decoding on OpenVINO with plain decoding on torch."""
    try:
        select_engine(model, "openvino", memory=MEMORY)
    except ValueError as error:
        reason = str(error).partition(": ")[2].removeprefix("OpenVINO cannot run this model: ")
        return OpenVINOResult({}, reason.removesuffix("."))
    results = {mode: check_model(model, mode, engine="openvino") for mode in MODES}
    traits = traits_of(model)
    windows = [reach.window for reach in traits.attention_spans.values() if reach.window]
    switch = None if traits.rope is None else traits.rope.position
    return OpenVINOResult(results, window=min(windows, default=None), switch=switch)


def check_model(
    model: PreTrainedModel, mode: str, drafters: tuple[str, ...] = tuple(DRAFTERS), *, engine: EngineName = "torch"
) -> dict[str, ComparisonResult]:
    """Decode a prompt plainly on torch, then with each drafter from the same random state, and compare."""
    tokens = torch.randint(1, 250, (1, PROMPT_TOKENS), generator=torch.Generator().manual_seed(3)).to(model.device)
    switch = None if engine == "torch" else traits_of(model).rope  # beyond it, torch would decode
    count = NEW_TOKENS if switch is None else switch.position - PROMPT_TOKENS
    options = {"max_new_tokens": count, "eos_token_id": None, "use_cache": True, **MODES[mode]}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        plain = _decode_plainly(model, tokens, options)
        return {name: _compare(model, tokens, options | {"engine": engine}, plain, DRAFTERS[name]) for name in drafters}


@dataclass(frozen=True, slots=True)
class _Plain:
    """Plain decoding; ``uncached`` are the logits of one forward pass, or None if they are not comparable."""

    text: list[int]
    logits: Tensor
    uncached: Tensor | None


def _decode_plainly(model: Any, prompt: Tensor, options: Mapping[str, Any]) -> _Plain:
    torch.manual_seed(3)
    output = model.generate(prompt, return_dict_in_generate=True, output_logits=True, **options)
    text = output.sequences[0].tolist()
    # If rotary frequencies depend on the length, the cached keys of early tokens differ from those of one forward pass.
    uncached = None if traits_of(model).rope else _uncached_logits(model, text)[prompt.shape[1] - 1 : -1]
    return _Plain(text, torch.cat(output.logits), uncached)


def _compare(
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
    """Return the largest difference of logits: at the root and accepted rows, and at every row in the first steps."""
    errors = []
    for step, record in enumerate(records):
        kept = record.logits[[row + 1 for row in (ROOT, *record.accepted.path)]].float()
        for truth in (plain.logits, plain.uncached):
            if truth is not None:
                errors.append(_distance(kept, truth[record.length - start :][: len(kept)]))
        if plain.uncached is not None and step < FULLY_CHECKED_STEPS:
            errors += _branches(model, plain.text[: record.length], record)
    return max(errors)


def _branches(model: PreTrainedModel, context: Tokens, record: RecordedStep) -> list[float]:
    """Return for each path of the draft its largest difference from one forward pass over context and path."""
    errors = []
    for leaf in set(range(len(record.draft))) - set(record.draft.parents):
        path = path_to(record.draft, leaf)
        truth = _uncached_logits(model, [*context, *(record.draft.tokens[row] for row in path)])
        errors.append(_distance(record.logits[[row + 1 for row in path]].float(), truth[-len(path) :]))
    return errors


def _uncached_logits(model: PreTrainedModel, tokens: Tokens) -> Tensor:
    logits: Tensor = model(torch.tensor([list(tokens)], device=model.device), use_cache=False).logits[0].float()
    return logits


def _distance(logits: Tensor, truth: Tensor) -> float:
    return float((logits - truth).abs().max())
