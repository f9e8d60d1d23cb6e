"""Decoding methods of the speed benchmark: each decodes one prompt through its program's public interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from antiphon.accel.decoding.stats import Step
from antiphon.accel.drafting.drafters import DRAFTERS, WINDOW, Blend, make_drafter
from antiphon.accel.engines.selection import EngineName, parse_engine_name
from antiphon.accel.engines.torch.attention import varying_shapes
from antiphon.accel.engines.torch.bita_weights import bita_weights_of
from antiphon.pipelines.benchmark.openvino_genai import (
    GENAI,
    GENAI_LOOKUP,
    GenAIPipelines,
    OpenVINOGenAI,
    parse_lookup_draft_tokens,
)
from antiphon.pipelines.benchmark.run import Job, Method, MethodRun
from antiphon.pipelines.models.drafters import SMOLLM2, resolve_drafter

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel
    from antiphon.accel.drafting.draft import Accepted, Draft, Drafter, DrafterFactory, Logits, Tokens

GREEDY = "hf-greedy"
PROMPT_LOOKUP: dict[str, dict[str, int]] = {
    "hf-lookup": {"prompt_lookup_num_tokens": 10},
    "hf-lookup-n3": {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 3},
}
"""Prompt lookup of transformers: 10 draft tokens with the default n-gram size, and its author's n=3, k=10."""

WARM_UP_TOKENS, WARM_UP_ROWS = 8, 11
"""Tokens decoded plainly and unmeasured before each replay, because the processor's caches hold another program's data.

In OpenVINO GenAI, whose graph is compiled for each replay, and in our engine of OpenVINO, the whole answer is decoded
before; in ours with a fixed number of draft tokens, from which no later step learns.
"""

TRANSFORMERS_METHODS: dict[str, dict[str, int]] = {GREEDY: {}, **PROMPT_LOOKUP}


@dataclass(frozen=True, slots=True)
class TransformersGenerate:
    """`model.generate` of transformers, greedy, with the arguments that `TRANSFORMERS_METHODS` has for its name.

    On an NVIDIA GPU it runs without cuDNN's attention: torch may choose it by default, and it plans its kernels for
    each new length, which makes transformers several times slower.

    Attributes:
        name: Name on the command line.
        on_tokens: Called after each step with the number of tokens so far.
    """

    name: str
    on_tokens: Callable[[int], None] | None = None

    is_baseline = True

    def __call__(self, language_model: LanguageModel, job: Job, limit: int) -> MethodRun:
        """Decode a job. Hooks time the forward passes, and a stopping criterion the first token. See `Method`."""
        model: Any = language_model.model
        clock = _TokenClock(model.device, len(job.prompt), self.on_tokens)
        inputs = _inputs(model, job, limit)
        if job.answer is not None:
            with varying_shapes(model):
                model.generate(**_inputs(model, job, min(limit, WARM_UP_TOKENS)))
        with _ForwardTimer(model) as timer, varying_shapes(model):
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
            steps=len(timer.forwards) - 1,
            drafted=sum(forward.drafted for forward in timer.forwards[1:]),
            forward_seconds=timer.seconds_after(clock.first),
        )


@dataclass(frozen=True, slots=True)
class AntiphonGenerate:
    """`antiphon.accel.generate` with one drafter.

    Attributes:
        name: Name on the command line.
        drafter: Drafter factory, or "auto" for `choose_drafter`.
        num_draft_tokens: Maximum number of draft tokens per step; None for the number that the cost model selects.
        engine: Engine that runs the model.
        on_tokens: Called after each step with the number of tokens so far.
    """

    name: str
    drafter: DrafterFactory | Literal["auto"]
    num_draft_tokens: int | None
    engine: EngineName = "torch"
    on_tokens: Callable[[int], None] | None = None

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
            if self.on_tokens is not None:
                self.on_tokens(sum(len(each.tokens) for each in steps))

        model: Any = language_model.model
        inputs = _inputs(model, job, limit)
        factory = choose_drafter(model, engine=self.engine).drafter if self.drafter == "auto" else self.drafter
        drafter = factory if job.answer is None else lambda: _WithoutLogits(factory())
        options: dict[str, Any] = {
            "drafter": drafter,
            "num_draft_tokens": self.num_draft_tokens,
            "tokenizer": language_model.tokenizer,
            "engine": self.engine,
        }
        if job.answer is not None:
            is_whole = self.engine == "openvino"
            warm_up = options | {"num_draft_tokens": WARM_UP_ROWS if is_whole else 0, "drafter": Blend}
            warm_up |= _inputs(model, job, limit if is_whole else min(limit, WARM_UP_TOKENS))
            generate(model, references=job.references, **warm_up)
        has_timer = self.engine == "torch" and model.device.type == "cpu"
        with _ForwardTimer(model) if has_timer else nullcontext() as timer:
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
            forward_seconds=self._forward_seconds(later) if timer is None else timer.seconds_after(times[0]),
        )

    def _forward_seconds(self, steps: Sequence[Step]) -> float | None:
        """Sum the forward times that the steps report; None if the device computes asynchronously."""
        return None if self.engine == "torch" else sum(step.forward_seconds for step in steps)


NAMES = (*TRANSFORMERS_METHODS, *DRAFTERS)
"""Names of all methods that decode any model; the default of `bench speed`."""

COMBINATIONS: dict[str, Callable[[], DrafterFactory | Literal["auto"]]] = {
    "blend+lookahead": lambda: make_drafter("blend", window=WINDOW),
    "bita": lambda: resolve_drafter("bita"),
    "blend+bita": lambda: resolve_drafter("blend", bita=SMOLLM2),
    "blend+bita+lookahead": lambda: resolve_drafter("blend", bita=SMOLLM2, window=WINDOW),
}
"""Further methods: drafters with options. Those with BiTA need SmolLM2."""


def methods_by_name(names: Sequence[str], num_draft_tokens: int | None) -> tuple[Method, ...]:
    """Return the methods of these names, each once, after transformers' greedy decoding.

    A drafter's name may be followed by an engine (``blend@openvino``; default torch) and by its own maximum number of
    draft tokens: ``blend:16``, ``blend@openvino:16``, ``blend:auto``. ``openvino-genai`` and
    ``openvino-genai-lookup:8`` are OpenVINO GenAI on the same weights.

    Args:
        num_draft_tokens: Maximum number of draft tokens of methods that name none; None: selected by the cost model.

    Raises:
        ValueError: no method or engine has a given name, or a number of draft tokens is not a number.
    """
    pipelines = GenAIPipelines()
    return tuple(method_by_name(name, num_draft_tokens, pipelines) for name in dict.fromkeys((GREEDY, *names)))


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


def method_by_name(name: str, num_draft_tokens: int | None, pipelines: GenAIPipelines) -> Method:
    """Return one method, see `methods_by_name`; those of OpenVINO GenAI share ``pipelines``."""
    head, _, own = name.partition(":")
    if head in TRANSFORMERS_METHODS and not own:
        return TransformersGenerate(name)
    if name == GENAI:
        return OpenVINOGenAI(name, 0, pipelines)
    if head == GENAI_LOOKUP:
        return OpenVINOGenAI(name, parse_lookup_draft_tokens(own), pipelines)
    drafter_name, engine, maximum = parse_method(name, num_draft_tokens)
    drafter: DrafterFactory | Literal["auto"]
    if drafter_name == "auto":
        drafter = "auto"
    elif drafter_name in COMBINATIONS:
        drafter = COMBINATIONS[drafter_name]()
    elif drafter_name in DRAFTERS:
        drafter = DRAFTERS[drafter_name]
    else:
        known = ", ".join((*NAMES, *COMBINATIONS, "auto", GENAI, GENAI_LOOKUP))
        raise ValueError(f"There is no method {name!r}; choose from {known}, or a drafter with rows: blend:16.")
    return AntiphonGenerate(name, drafter, maximum, engine)


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


class _WithoutLogits:
    """A drafter that never sees logits: under teacher forcing they would reveal the recorded next tokens."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.bita_weights = bita_weights_of(drafter)

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft | None:
        return self._drafter.begin(prompt, references)

    def propose(self, context: Tokens, budget: int) -> Draft:
        return self._drafter.propose(context, budget)

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        self._drafter.observe(draft, accepted, None)


class _TokenClock(StoppingCriteria):
    """A stopping criterion that never stops: it notes the time of the first token, and reports the number of tokens."""

    def __init__(self, device: torch.device, prompt_tokens: int, on_tokens: Callable[[int], None] | None) -> None:
        self.first = 0.0
        self._never = torch.zeros(1, dtype=torch.bool, device=device)
        self._prompt_tokens, self._on_tokens = prompt_tokens, on_tokens

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        if not self.first:
            if self._never.is_cuda:
                torch.cuda.synchronize(self._never.device)
            self.first = perf_counter()
        if self._on_tokens is not None:
            self._on_tokens(input_ids.shape[1] - self._prompt_tokens)
        return self._never


@dataclass(frozen=True, slots=True)
class _TimedForward:
    """One forward pass: when it started, its duration, and its rows with logits beyond the first."""

    started: float
    seconds: float
    drafted: int


class _ForwardTimer:
    """Times and counts all forward passes of a model by hooks, which also work with compiled steps."""

    def __init__(self, model: Any) -> None:
        self.forwards: list[_TimedForward] = []
        self._is_timed = model.device.type == "cpu"
        self._started = 0.0
        self._hooks = (model.register_forward_pre_hook(self._begin), model.register_forward_hook(self._end))

    def seconds_after(self, moment: float) -> float | None:
        """Sum the durations of forward passes started after ``moment``; None if the device computes asynchronously."""
        if not self._is_timed:
            return None
        return sum(forward.seconds for forward in self.forwards if forward.started >= moment)

    def __enter__(self) -> _ForwardTimer:
        return self

    def __exit__(self, *failure: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _begin(self, model: Any, args: Any) -> None:
        self._started = perf_counter()

    def _end(self, model: Any, args: Any, output: Any) -> None:
        seconds = perf_counter() - self._started
        self.forwards.append(_TimedForward(self._started, seconds, output.logits.shape[1] - 1))
