"""Decoding methods of the speed benchmark: each decodes one prompt through its program's public interface."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from antiphon.accel.decoding.stats import Step
from antiphon.accel.drafting.drafters import BITA, DRAFTERS, WINDOW
from antiphon.accel.engines.selection import EngineName, parse_engine_name
from antiphon.accel.engines.torch.attention import varying_shapes
from antiphon.pipelines.models.drafters import SMOLLM2, resolve_drafter

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel
    from antiphon.accel.drafting.draft import DrafterFactory


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt to decode.

    Attributes:
        references: Texts that drafts may be copied from.
    """

    prompt: tuple[int, ...]
    references: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MethodRun:
    """Measurements of decoding one job once; times are seconds of the wall clock.

    Attributes:
        tokens: Emitted token ids.
        first_token_seconds: Time until the prefill emits the first tokens.
        steps: Forward passes after the prefill.
        drafted: Draft tokens verified after the prefill; None if the program does not report them.
        setup_seconds: Drafting work before the first token, such as indexing the references. It counts as decoding
            time, because plain decoding does not need it. Drafting for the prefill, as in prompt lookup, is not
            counted.
        draft_seconds: Time in the drafter, as Antiphon's steps report it.
    """

    tokens: tuple[int, ...]
    seconds: float
    first_token_seconds: float
    steps: int
    drafted: int | None
    setup_seconds: float = 0.0
    draft_seconds: float | None = None

    @property
    def decode_seconds(self) -> float:
        """Decoding time, including the drafting work before the first token (``setup_seconds``)."""
        return self.seconds - self.first_token_seconds + self.setup_seconds


class Method(Protocol):
    """A way to decode one prompt greedily."""

    @property
    def name(self) -> str:
        """Name on the command line."""

    @property
    def is_baseline(self) -> bool:
        """Whether the method is another program, with which Antiphon is compared."""

    def __call__(self, language_model: LanguageModel, job: Job, limit: int) -> MethodRun:
        """Decode a job, at most ``limit`` new tokens, and measure it."""


GREEDY = "hf-greedy"
PROMPT_LOOKUP: dict[str, dict[str, int]] = {
    "hf-lookup": {"prompt_lookup_num_tokens": 10},
    "hf-lookup-n3": {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 3},
}
"""Prompt lookup of transformers with 10 draft tokens: with the default n-gram size, and with its author's size 3."""

TRANSFORMERS_METHODS: dict[str, dict[str, int]] = {GREEDY: {}, **PROMPT_LOOKUP}


@dataclass(frozen=True, slots=True)
class TransformersGenerate:
    """Greedy `model.generate` of transformers, with the arguments in `TRANSFORMERS_METHODS`.

    On an NVIDIA GPU, cuDNN's attention is turned off. cuDNN would plan new kernels for every
    length, which makes transformers several times slower.
    """

    name: str

    is_baseline = True

    def __call__(self, language_model: LanguageModel, job: Job, limit: int) -> MethodRun:
        """Decode a job. A hook counts the forward passes, and a stopping criterion times the first token."""
        model: Any = language_model.model
        clock = _FirstTokenClock(model.device)
        inputs = _inputs(model, job, limit)
        with _counted_rows(model) as rows, varying_shapes(model):
            started = perf_counter()
            output = model.generate(
                **inputs, **TRANSFORMERS_METHODS[self.name], stopping_criteria=StoppingCriteriaList([clock])
            )
            tokens = output[0, len(job.prompt) :].tolist()
            seconds = perf_counter() - started
        return MethodRun(
            tokens=tuple(tokens),
            seconds=seconds,
            first_token_seconds=clock.first - started,
            steps=len(rows) - 1,
            drafted=sum(rows[1:]) - len(rows[1:]),
        )


@dataclass(frozen=True, slots=True)
class AntiphonGenerate:
    """`antiphon.accel.generate` with one drafter.

    Attributes:
        drafter: Drafter factory, or "auto" for `choose_drafter`.
        num_draft_tokens: Maximum number of draft tokens per step; None: the cost model selects the
            number.
    """

    name: str
    drafter: DrafterFactory | Literal["auto"]
    num_draft_tokens: int | None
    engine: EngineName = "torch"

    is_baseline = False

    def __call__(self, language_model: LanguageModel, job: Job, limit: int) -> MethodRun:
        """Decode a job. Each step reports its own times. See `Method`."""
        from antiphon.accel.decoding.drafter_choice import choose_drafter
        from antiphon.accel.generate import generate

        steps: list[Step] = []
        times: list[float] = []

        def note(step: Step) -> None:
            steps.append(step)
            times.append(perf_counter())

        model: Any = language_model.model
        inputs = _inputs(model, job, limit)
        drafter = choose_drafter(model, engine=self.engine).drafter if self.drafter == "auto" else self.drafter
        options: dict[str, Any] = {
            "drafter": drafter,
            "num_draft_tokens": self.num_draft_tokens,
            "tokenizer": language_model.tokenizer,
            "engine": self.engine,
        }
        started = perf_counter()
        generate(model, **inputs, references=job.references, on_step=note, **options)
        seconds = perf_counter() - started
        later = steps[1:]
        return MethodRun(
            tokens=tuple(token for step in steps for token in step.tokens),
            seconds=seconds,
            first_token_seconds=times[0] - started,
            steps=len(later),
            drafted=sum(step.drafted for step in later),
            setup_seconds=steps[0].draft_seconds,
            draft_seconds=sum(step.draft_seconds for step in later),
        )


NAMES = (*TRANSFORMERS_METHODS, *DRAFTERS)
"""Names of all methods that decode any model; the default of `bench speed`."""


def methods_by_name(names: Sequence[str], num_draft_tokens: int | None) -> tuple[Method, ...]:
    """Return transformers' greedy decoding and then the named methods, without duplicates.

    A drafter's name may be followed by an engine (``blend@openvino``; default torch) and by its own maximum number of
    draft tokens: ``blend:16``, ``blend@openvino:16``, ``blend:auto``. A name such as ``blend+bita+lookahead`` adds
    BiTA's weights for SmolLM2 and Lookahead's window to the drafter.

    Args:
        num_draft_tokens: Maximum number of draft tokens for names that contain none; None: the cost
            model selects it.

    Raises:
        ValueError: there is no method or engine of a given name, or a number of draft tokens is not
            a number.
    """
    return tuple(method_by_name(name, num_draft_tokens) for name in dict.fromkeys((GREEDY, *names)))


def parse_num_draft_tokens(text: str) -> int | None:
    """Return a maximum number of draft tokens given on the command line, or None for "auto".

    Raises:
        ValueError: ``text`` is neither a number nor "auto".
    """
    if text == "auto":
        return None
    if not text.isdigit():
        raise ValueError(f"num_draft_tokens is {text!r}; give a number, or auto to let the cost model choose.")
    return int(text)


def method_by_name(name: str, num_draft_tokens: int | None) -> Method:
    """Return one method; see `methods_by_name`."""
    if name in TRANSFORMERS_METHODS:
        return TransformersGenerate(name)
    drafter_name, engine, maximum = parse_method(name, num_draft_tokens)
    first, *added = drafter_name.split("+")
    if first not in (*DRAFTERS, BITA, "auto") or not {*added} <= {BITA, "lookahead"}:
        known = ", ".join((*NAMES, BITA, "auto"))
        raise ValueError(f"There is no method {name!r}; choose from {known}, or a drafter with rows: blend:16.")
    options: dict[str, Any] = {"bita": SMOLLM2} if BITA in added else {}
    options |= {"window": WINDOW} if "lookahead" in added else {}
    return AntiphonGenerate(name, resolve_drafter(first, **options), maximum, engine)


def parse_method(name: str, num_draft_tokens: int | None) -> tuple[str, EngineName, int | None]:
    """Return drafter, engine and maximum number of draft tokens of a name such as ``blend@openvino:16``."""
    head, _, own = name.partition(":")
    drafter, _, engine = head.partition("@")
    maximum = parse_num_draft_tokens(own) if own else num_draft_tokens
    return drafter, parse_engine_name(engine or "torch"), maximum


def _inputs(model: Any, job: Job, limit: int) -> dict[str, Any]:
    ids = torch.tensor([job.prompt], device=model.device)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "max_new_tokens": limit,
        "do_sample": False,
        "num_beams": 1,
    }


class _FirstTokenClock(StoppingCriteria):
    """A stopping criterion that records the time of the first token and never stops generation."""

    def __init__(self, device: torch.device) -> None:
        self.first = 0.0
        self._never = torch.zeros(1, dtype=torch.bool, device=device)

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        if not self.first:
            if self._never.is_cuda:
                torch.cuda.synchronize(self._never.device)
            self.first = perf_counter()
        return self._never


@contextmanager
def _counted_rows(model: Any) -> Iterator[list[int]]:
    """Yield a list. Every forward pass, compiled or not, appends to it the number of rows whose logits are computed."""
    rows: list[int] = []
    hook = model.register_forward_hook(lambda _, inputs, output: rows.append(output.logits.shape[1]))
    try:
        yield rows
    finally:
        hook.remove()
