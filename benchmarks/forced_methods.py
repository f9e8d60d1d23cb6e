"""Replays in the speed study: every program computes in full, and teacher forcing makes it emit recorded answers.

OpenVINO GenAI gets each answer in its graph, the other programs as `benchmarks.teacher_forcing` describes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.decoding.model_request import head_part
from antiphon.accel.drafting.drafters import Blend
from antiphon.accel.engines.torch.bita_weights import bita_weights_of
from antiphon.pipelines.benchmark.jobs import make_jobs
from antiphon.pipelines.benchmark.methods import GREEDY, AntiphonGenerate, Job, Method, MethodRun, TransformersGenerate
from benchmarks.methods import WarmBlend
from benchmarks.openvino_genai import (
    GenAIPipelines,
    OpenVINOGenAI,
    export_model,
    open_pipeline,
)
from benchmarks.replay import answer_tokens
from benchmarks.teacher_forcing import EngineForcing, TeacherForcing

if TYPE_CHECKING:
    import openvino
    from transformers import PreTrainedModel

    from antiphon.accel import LanguageModel
    from antiphon.accel.drafting.draft import Accepted, Draft, Drafter, DrafterFactory, Logits, Tokens
    from antiphon.accel.engines.openvino.engine import OpenVINOEngine
    from antiphon.pipelines.benchmark.samples import RecordedSample

WARM_UP_TOKENS, WARM_UP_ROWS = 8, 11
"""Tokens decoded plainly and unmeasured before each replay, because the processor's caches hold another program's data.

In OpenVINO GenAI, whose graph is compiled for each replay, and in our engine of OpenVINO, the whole answer is decoded
before; in ours with a fixed number of draft tokens, from which no later step learns.
"""

ANSWER = "recorded_answer"
"""Name of the constant of a graph for replays: position of the first answer token, then the answer."""

LONGEST_ANSWER = 1024
"""Maximum number of answer tokens in a graph for replays."""

FORCE = 1024.0
"""Factor of the head's weights: with 1,000 numbers of standard deviation 0.02 in a row, the logit becomes some 400."""


@dataclass(frozen=True, slots=True)
class ReplayJob(Job):
    """A prompt, and the recorded answer in token ids that every program is forced to emit."""

    answer: tuple[int, ...] = ()


def replay_jobs(
    language_model: LanguageModel, samples: Sequence[RecordedSample], *, limit: int, passages: int | None = None
) -> list[ReplayJob]:
    """Return the jobs of `make_jobs` with their recorded answers, at most ``limit`` tokens of each.

    Raises:
        ValueError: see `make_jobs`; or the tokenizer has no end-of-sequence token.
    """
    answers = [answer_tokens(sample, language_model.tokenizer)[:limit] for sample in samples]
    jobs = make_jobs(language_model, samples, limit=limit, passages=passages)
    return [ReplayJob(job.prompt, job.references, answer) for job, answer in zip(jobs, answers, strict=True)]


@contextmanager
def replaying(language_model: LanguageModel, methods: Sequence[Method], *, limit: int) -> Iterator[list[Method]]:
    """Force the model; yield methods that decode `ReplayJob` objects until the ``with`` block exits.

    Raises:
        ValueError: a method emitted tokens other than the recorded answer.
    """
    from antiphon.accel.engines.torch.engine import traits_of

    traits_of(language_model.model)  # determined by forward passes, which teacher forcing would falsify
    if any(isinstance(method, OpenVINOGenAI) for method in methods):
        export_for_replays(language_model.model)  # before the hook, which must not become a part of the graph
    end = language_model.tokenizer.eos_token_id
    with ExitStack() as stack:
        forced: list[TeacherForcing | EngineForcing] = []
        if any(getattr(method, "engine", "") == "openvino" for method in methods):
            forced.append(stack.enter_context(EngineForcing(_prepared_engine(language_model), end=end)))
        forced.append(stack.enter_context(TeacherForcing(language_model.model, end=end, longest=limit)))
        pipelines = ReplayPipelines(end)

        def replayed(method: Method) -> Method:
            if isinstance(method, WarmBlend):
                return WarmBlend(replayed(method.method), method.table)
            if isinstance(method, OpenVINOGenAI):
                return ReplayedGenAI(replace(method, pipelines=pipelines))
            if isinstance(method, AntiphonGenerate):
                method = without_logits(language_model.model, method)
            return Replayed(method, forced)

        yield [replayed(method) for method in methods]


def _prepared_engine(language_model: LanguageModel) -> OpenVINOEngine:
    """Return the model's OpenVINO engine after everything that it measures about the model."""
    from antiphon.accel.engines.openvino.engine import OpenVINOEngine
    from antiphon.accel.engines.selection import select_engine

    engine = select_engine(language_model.model, "openvino").engine
    assert isinstance(engine, OpenVINOEngine)
    engine.lock.run(lambda: (engine.step_cost(), engine.bigrams))
    return engine


class Replayed:
    """A method of transformers or ours that decodes a `ReplayJob` after a warm-up, and checks what it emitted."""

    def __init__(self, method: Method, forced: Sequence[TeacherForcing | EngineForcing]) -> None:
        self.name, self.is_baseline = method.name, method.is_baseline
        self._method, self._forced = method, forced

    def __call__(self, language_model: LanguageModel, job: Job, limit: int) -> MethodRun:
        """Force the model to emit the job's answer, and decode it. See `Method`."""
        assert isinstance(job, ReplayJob)
        for forcing in self._forced:
            forcing.follow(len(job.prompt), job.answer)
        warm_up, tokens = self._warm_up(limit)
        warm_up(language_model, job, tokens)
        return checked(self.name, self._method(language_model, job, limit), job.answer)

    def _warm_up(self, limit: int) -> tuple[Method, int]:
        few = min(limit, WARM_UP_TOKENS)
        if not isinstance(self._method, AntiphonGenerate):
            return TransformersGenerate(GREEDY), few
        is_whole = self._method.engine == "openvino"
        rows = WARM_UP_ROWS if is_whole else 0
        return replace(self._method, drafter=Blend, num_draft_tokens=rows), limit if is_whole else few


class ReplayedGenAI:
    """OpenVINO GenAI, which decodes a `ReplayJob` with a graph that contains the answer."""

    is_baseline = True

    def __init__(self, method: OpenVINOGenAI) -> None:
        self.name = method.name
        self._method = method

    def __call__(self, language_model: LanguageModel, job: Job, limit: int) -> MethodRun:
        """Decode the job's answer; twice if the pipeline is new. See `Method`."""
        assert isinstance(job, ReplayJob)
        assert isinstance(self._method.pipelines, ReplayPipelines)
        if self._method.pipelines.follow(job, self._method.num_draft_tokens):
            self._method(language_model, job, limit)
        return checked(self.name, self._method(language_model, job, limit), job.answer)


class ReplayPipelines(GenAIPipelines):
    """Pipelines that emit one recorded answer; only those of the last answer are kept.

    Args:
        end: End-of-sequence token id, which follows each answer.
    """

    def __init__(self, end: int) -> None:
        super().__init__(self._replaying)
        self._end = end
        self._job = ReplayJob(())
        self._warm: set[int] = set()

    def follow(self, job: ReplayJob, num_draft_tokens: int) -> bool:
        """Emit a job's answer from now on; return whether it is new with this number of draft tokens."""
        if job != self._job:
            self._opened.clear()
            self._warm.clear()
            self._job = job
        is_new = num_draft_tokens not in self._warm
        self._warm.add(num_draft_tokens)
        return is_new

    def _replaying(self, model: Any, *, prompt_lookup: bool) -> Any:
        exported = export_model(model, prompt_lookup=prompt_lookup, export=export_for_replays)
        weights = np.memmap(exported.graph.with_suffix(".bin"), dtype=np.uint8, mode="c")
        graph = exported.graph.read_text(encoding="utf-8")
        write_answer(graph, weights, len(self._job.prompt), self._job.answer, self._end)
        return open_pipeline(exported, weights)


def checked(name: str, run: MethodRun, answer: Sequence[int]) -> MethodRun:
    """Return the run; raise ValueError unless it emitted the recorded answer."""
    emitted = run.tokens
    if emitted == tuple(answer):
        return run
    pairs = zip(emitted, answer, strict=False)
    first = next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(emitted), len(answer)))
    raise ValueError(
        f"{name} emitted {len(emitted)} tokens that differ from the {len(answer)} recorded ones at token {first}, so "
        "its time cannot be compared. A replay needs a model that ends at the tokenizer's end-of-sequence token."
    )


def without_logits(model: PreTrainedModel, method: AntiphonGenerate) -> AntiphonGenerate:
    """Return the method with a drafter that never sees logits: they would reveal the recorded next tokens."""
    from antiphon.accel.decoding.drafter_choice import choose_drafter

    chosen: DrafterFactory | Literal["auto"] = method.drafter
    factory = choose_drafter(model, engine=method.engine).drafter if chosen == "auto" else chosen
    return replace(method, drafter=lambda: WithoutLogits(factory()))


class WithoutLogits:
    """Wraps a drafter, which gets no logits.

    Args:
        drafter: The drafter.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.bita_weights = bita_weights_of(drafter)
        self.head = head_part(drafter)
        self.parts = (type(drafter), *getattr(drafter, "parts", ()))

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft | None:
        """Begin a request."""
        return self._drafter.begin(prompt, references)

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Return the other drafter's draft."""
        return self._drafter.propose(context, budget)

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Forward the step without its logits."""
        self._drafter.observe(draft, accepted, None)


def export_for_replays(model: Any) -> Path:
    """Export the model for OpenVINO GenAI with the nodes that `write_answer` needs; return the folder."""
    from benchmarks.stateful_graph import export_stateful

    return export_stateful(model, "replay", _follow_answer)


def write_answer(graph: str, weights: NDArray[np.uint8], start: int, answer: Sequence[int], end: int) -> None:
    """Write a recorded answer into the constants of an exported graph; a pipeline made from them emits it.

    Args:
        graph: The graph's XML, exported with ``replayed``.
        weights: Contents of its weights file, which are changed in place.
        start: Position of the first answer token, which is the length of the prompt.
        answer: Recorded answer in token ids, at most `LONGEST_ANSWER`.
        end: End-of-sequence token id, which follows the answer.

    Raises:
        ValueError: The answer is too long.
    """
    if len(answer) > LONGEST_ANSWER:
        raise ValueError(f"The answer has {len(answer)} tokens; a replay holds at most {LONGEST_ANSWER}.")
    [layer] = [each for each in ElementTree.fromstring(graph).iterfind("layers/layer") if each.get("name") == ANSWER]
    data = layer.find("data")
    assert data is not None
    offset, size = int(data.get("offset", "")), int(data.get("size", ""))
    table = np.full(1 + LONGEST_ANSWER, end, dtype=np.int64)
    table[0], table[1 : 1 + len(answer)] = start, answer
    weights[offset : offset + size] = table.view(np.uint8)


def _follow_answer(graph: openvino.Model) -> None:
    """Add to each row before the head a multiple of the head's weights of the recorded next token.

    With random weights, which are nearly orthogonal, that token is then the most likely one. Nothing is changed behind
    the head, so that GenAI still finds it and computes the logits of the rows that it needs only.
    """
    from openvino import opset13

    table = opset13.constant(np.arange(1 + LONGEST_ANSWER, dtype=np.int64), name=ANSWER)
    zero, one = (opset13.constant(np.int64(each)) for each in (0, 1))
    start = opset13.gather(table, zero, zero)
    index = opset13.subtract(opset13.add(graph.input("position_ids"), opset13.constant(np.int64(2))), start)
    index = opset13.minimum(opset13.maximum(index, one), opset13.constant(np.int64(LONGEST_ANSWER)))
    tokens = opset13.gather(table, index, zero)
    head = graph.output("logits").get_node().input_value(0).get_node()
    while head.get_type_name() != "MatMul":
        head = head.input_value(0).get_node()
    rows = opset13.gather(head.input_value(1), tokens, zero)
    forced = opset13.multiply(rows, opset13.constant(np.float32(FORCE)))
    head.input(0).replace_source_output(opset13.add(head.input_value(0), forced).output(0))
    graph.validate_nodes_and_infer_types()
