"""Ways to decode one prompt, each through its own public interface, and what it took. Knows no files and no tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from antiphon.accel.decoding.stats import Step
from antiphon.accel.drafting.drafters import DRAFTERS, WINDOW, Blend, Lookahead, RecyclingTable, make_drafter
from antiphon.accel.engines.selection import EngineName, parse_engine_name
from antiphon.accel.engines.torch.bita_weights import bita_weights_of
from antiphon.pipelines.benchmark.openvino_genai import (
    GENAI,
    GENAI_LOOKUP,
    GenAIPipelines,
    OpenVINOGenAI,
    guessed_tokens,
)
from antiphon.pipelines.benchmark.run import Job, Method, MethodRun
from antiphon.pipelines.models.drafters import SMOLLM2, resolve_drafter, window_size

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel
    from antiphon.accel.drafting.draft import Accepted, Draft, Drafter, DrafterFactory, Logits, Tokens

GREEDY = "hf-greedy"
PROMPT_LOOKUP: dict[str, dict[str, int]] = {
    "hf-lookup": {"prompt_lookup_num_tokens": 10},
    "hf-lookup-n3": {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 3},
}
"""Prompt lookup of transformers: 10 tokens with its defaults, and the n=3 k=10 of its author."""

WARM = "blend-warm"

PEERS: dict[str, dict[str, int]] = {GREEDY: {}, **PROMPT_LOOKUP}


@dataclass(frozen=True, slots=True)
class HuggingFace:
    """`model.generate` of transformers, greedy, with further ``arguments`` of its own."""

    name: str

    @property
    def is_peer(self) -> bool:
        """It is what everybody has."""
        return True

    def __call__(self, language_model: LanguageModel, job: Job, limit: int) -> MethodRun:
        """Decode the job; forwards are watched by hooks, and the first token by a stopping criterion."""
        model: Any = language_model.model
        clock = _Clock(model.device)
        criteria = StoppingCriteriaList([clock])
        inputs = _inputs(model, job, limit)
        with _Watch(model) as watch:
            started = perf_counter()
            output = model.generate(**inputs, **PEERS[self.name], stopping_criteria=criteria)
            tokens = output[0, len(job.prompt) :].tolist()
            seconds = perf_counter() - started
        return MethodRun(
            tokens=tuple(tokens),
            seconds=seconds,
            first=clock.first - started,
            steps=len(watch.forwards) - 1,
            drafted=sum(forward.drafted for forward in watch.forwards[1:]),
            forward=watch.seconds_after(clock.first),
        )


@dataclass(frozen=True, slots=True)
class Ours:
    """`antiphon.accel.generate` with one drafter and ``rows`` draft rows, or as many as the budget says (None)."""

    name: str
    drafter: DrafterFactory | Literal["auto"]
    rows: int | None
    engine: EngineName = "torch"

    @property
    def is_peer(self) -> bool:
        """It is this package's."""
        return False

    def __call__(self, language_model: LanguageModel, job: Job, limit: int) -> MethodRun:
        """Decode the job; every step says itself what it took."""
        from antiphon.accel.decoding.choice import choose_drafter
        from antiphon.accel.generate import generate

        steps: list[Step] = []
        times: list[float] = []

        def note(step: Step) -> None:
            steps.append(step)
            times.append(perf_counter())

        model: Any = language_model.model
        inputs = _inputs(model, job, limit)
        factory = choose_drafter(model, engine=self.engine).drafter if self.drafter == "auto" else self.drafter
        drafter = factory if job.answer is None else lambda: _WithoutLogits(factory())
        options: dict[str, Any] = {
            "drafter": drafter,
            "num_draft_tokens": self.rows,
            "tokenizer": language_model.tokenizer,
        }
        options["engine"] = self.engine
        is_watched = self.engine == "torch" and model.device.type == "cpu"
        with _Watch(model) if is_watched else nullcontext() as watch:
            started = perf_counter()
            generate(model, **inputs, references=job.references, on_step=note, **options)
            seconds = perf_counter() - started
        later = steps[1:]
        return MethodRun(
            tokens=tuple(token for step in steps for token in step.tokens),
            seconds=seconds,
            first=times[0] - started,
            steps=len(later),
            drafted=sum(step.drafted for step in later),
            reading=steps[0].draft_seconds,
            drafting=sum(step.draft_seconds for step in later),
            forward=self._forwards(later) if watch is None else watch.seconds_after(times[0]),
            looping=sum(step.seconds - step.forward_seconds for step in later),
        )

    def _forwards(self, steps: Sequence[Step]) -> float | None:
        """Seconds of forwards as the steps say themselves; None on a device that works on when they return."""
        return None if self.engine == "torch" else sum(step.forward_seconds for step in steps)


class Warm:
    """`Blend` as `LanguageModel` has it: what a request teaches of the model's runners-up, the next ones draft from.

    Every round begins with nothing, so that no text is drafted from itself: a job that comes again begins one.
    """

    is_peer = False

    def __init__(self, name: str, rows: int | None, engine: EngineName = "torch") -> None:
        self.name = name
        self._table = RecyclingTable()
        self._ours = Ours(name, partial(Blend, recycling=self._table), rows, engine)
        self._met: set[Job] = set()

    def __call__(self, language_model: LanguageModel, job: Job, limit: int) -> MethodRun:
        """Decode the job after those of this round."""
        if job in self._met:
            self._table.clear()
            self._met.clear()
        self._met.add(job)
        return self._ours(language_model, job, limit)


NAMES = (*PEERS, *DRAFTERS)
"""Every method that decodes any model, under the name that a command line gives it."""

COMBINED: dict[str, Callable[[], DrafterFactory | Literal["auto"]]] = {
    "blend+lookahead": lambda: make_drafter("blend", window=WINDOW),
    "bita": lambda: resolve_drafter("bita"),
    "blend+bita": lambda: resolve_drafter("blend", bita=SMOLLM2),
    "blend+bita+lookahead": lambda: resolve_drafter("blend", bita=SMOLLM2, window=WINDOW),
}
"""Further methods that tables compare: drafters with options. Those with BiTA are for SmolLM2."""


def methods_named(names: Sequence[str], rows: int | None) -> tuple[Method, ...]:
    """The methods of those names, plain decoding by transformers before all others, each once.

    A drafter's name may be followed by an engine (``blend@openvino``; torch without one), and by rows of its own:
    ``blend:16``, ``blend@openvino:16``, or ``blend:auto`` for as many as pay. ``blend-warm`` is the default drafter as
    a `LanguageModel` has it, which remembers earlier requests.
    ``openvino-genai`` and ``openvino-genai-lookup:8`` are another program on the same weights.

    Raises:
        ValueError: there is no method or engine of a name, or its rows are no number.
    """
    pipelines = GenAIPipelines()
    return tuple(_method(name, rows, pipelines) for name in dict.fromkeys((GREEDY, *names)))


def compared(
    names: Sequence[str] | None, rows: str, windows: Sequence[str] = (), *, unread: bool = False
) -> tuple[Method, ...]:
    """What a command line asks to compare: methods by name, and lookahead's windows; all methods without either.

    Raises:
        ValueError: as `methods_named`, `rows_named` and `lookaheads`.
    """
    named = names or (() if windows else NAMES)
    return methods_named(named, rows_named(rows)) + lookaheads(windows, unread=unread)


def rows_named(rows: str) -> int | None:
    """How many rows a command line asks for: a number, or None for "auto".

    Raises:
        ValueError: it is neither.
    """
    if rows == "auto":
        return None
    if not rows.isdigit():
        raise ValueError(f"num_draft_tokens is {rows!r}; give a number, or auto for as many as pay.")
    return int(rows)


def _method(name: str, rows: int | None, pipelines: GenAIPipelines) -> Method:
    head, _, own = name.partition(":")
    if head in PEERS and not own:
        return HuggingFace(name)
    if name == GENAI:
        return OpenVINOGenAI(name, 0, pipelines)
    if head == GENAI_LOOKUP:
        return OpenVINOGenAI(name, guessed_tokens(own), pipelines)
    base, _, asked = head.partition("@")
    engine = parse_engine_name(asked or "torch")
    own_rows = rows_named(own) if own else rows
    if base == WARM:
        return Warm(name, own_rows, engine)
    if base == "auto":
        return Ours(name, "auto", own_rows, engine)
    if base in COMBINED:
        return Ours(name, COMBINED[base](), own_rows, engine)
    if base not in DRAFTERS:
        known = ", ".join((*NAMES, *COMBINED, WARM, "auto", GENAI, GENAI_LOOKUP))
        raise ValueError(f"There is no method {name!r}; choose from {known}, or a drafter with rows: blend:16.")
    return Ours(name, DRAFTERS[base], own_rows, engine)


def lookaheads(sizes: Sequence[str], *, unread: bool = False) -> tuple[Method, ...]:
    """Lookahead with windows of these sizes, such as "7,5,7" (see `window_size`), each with all the rows it needs.

    With ``unread`` each is there a second time, with n-grams of its window alone and none of the prompt.

    Raises:
        ValueError: a size is none.
    """
    methods: list[Method] = []
    for size in dict.fromkeys(sizes):
        for reads in (True, False) if unread else (True,):
            drafter = partial(Lookahead, *window_size(size), reads=reads)
            methods.append(Ours(f"lookahead:{size}" if reads else f"lookahead:{size},unread", drafter, drafter().rows))
    return tuple(methods)


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
    """A drafter that is shown no logits: those of a model that replays a text are of that text's next tokens."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.bita_weights = bita_weights_of(drafter)

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft | None:
        return self._drafter.begin(prompt, references)

    def propose(self, context: Tokens, budget: int) -> Draft:
        return self._drafter.propose(context, budget)

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        self._drafter.observe(draft, accepted, None)


class _Clock(StoppingCriteria):
    """Never stops; remembers when the first tokens were there."""

    def __init__(self, device: torch.device) -> None:
        self.first = 0.0
        self._never = torch.zeros(1, dtype=torch.bool, device=device)

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        if not self.first:
            if self._never.is_cuda:
                torch.cuda.synchronize(self._never.device)
            self.first = perf_counter()
        return self._never


@dataclass(frozen=True, slots=True)
class _Forward:
    """When a forward began, the seconds that it took, and the rows beside the first that it gave logits for."""

    started: float
    seconds: float
    drafted: int


class _Watch:
    """Watches every forward of a model by hooks that time and count: nothing that a compiled forward may have."""

    def __init__(self, model: Any) -> None:
        self.forwards: list[_Forward] = []
        self._is_timed = model.device.type == "cpu"
        self._started = 0.0
        self._hooks = (model.register_forward_pre_hook(self._begin), model.register_forward_hook(self._end))

    def seconds_after(self, moment: float) -> float | None:
        """Seconds in the forwards that began after a moment; None on a device that works on when they return."""
        if not self._is_timed:
            return None
        return sum(forward.seconds for forward in self.forwards if forward.started >= moment)

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, *failure: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _begin(self, model: Any, args: Any) -> None:
        self._started = perf_counter()

    def _end(self, model: Any, args: Any, output: Any) -> None:
        seconds = perf_counter() - self._started
        self.forwards.append(_Forward(self._started, seconds, output.logits.shape[1] - 1))
