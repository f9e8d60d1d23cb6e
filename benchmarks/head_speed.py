"""Speed with a recorded draft head on OpenVINO: references alone, the head alone, both, and both with a wrong head.

OpenVINO GenAI's prompt lookup is measured in the same run. Every forward pass of the models and every pass of a head
of its shape is computed in full. Without FILE, the cost of a pass of each kind of head is measured.

python -m benchmarks.head_speed FILE --model qwen2.5-0.5b
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from time import process_time
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from antiphon.accel.drafting.drafters import Blend
from antiphon.accel.drafting.drafters.head import Head
from antiphon.pipelines.benchmark.facts import run_facts
from antiphon.pipelines.benchmark.samples import load_samples
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import AsJson, Limit, Task
from antiphon.pipelines.rendering.tables import result_table
from benchmarks.forced_methods import (
    ReplayedGenAI,
    ReplayJob,
    ReplayPipelines,
    WithoutLogits,
    checked,
    export_for_replays,
    replay_jobs,
)
from benchmarks.head_shapes import SHAPES, head_of_shape, pass_milliseconds
from benchmarks.heads import ACCEPTANCE, RecordedHead
from benchmarks.openvino_genai import GENAI_LOOKUP, OpenVINOGenAI
from benchmarks.program import program
from benchmarks.shapes import stored_shape
from benchmarks.teacher_forcing import EngineForcing

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel
    from antiphon.accel.decoding.stats import Step

RATES: dict[str, tuple[float, ...]] = {"head": ACCEPTANCE, "both": ACCEPTANCE, "both, always wrong": (0.0,)}
"""Acceptance rates by depth of the head of each method. All heads claim the same probabilities."""

LOOKUPS = (5, 10)
"""Draft tokens per step of OpenVINO GenAI's prompt lookup: its default, and the fastest number on long copied texts."""

COLUMNS = {
    "method": "drafts",
    "tokens_per_step": "tokens per step",
    "tokens_per_second": "tokens/s",
    "with_prefill": "with prefill",
    "step_ms": "step, ms",
    "cpu_ms": "processor ms per token",
    "passes_per_step": "passes per step",
    "pass_ms": "pass, ms",
}


class Decoded(NamedTuple):
    """One answer. All numbers leave out the prefill and the first token, except ``prefill_seconds``."""

    tokens: int
    steps: int
    seconds: float
    prefill_seconds: float
    cpu_seconds: float | None = None


def head_speed(
    file: Annotated[str | None, typer.Argument(help="Recorded answers as JSONL.")] = None,
    model: Annotated[str, typer.Option(help="A shape of benchmarks/shapes.py.")] = "qwen2.5-0.5b",
    kind: Annotated[str, typer.Option(help=f"The head's shape: {', '.join(SHAPES)}.")] = "eagle3",
    passages: Annotated[int, typer.Option(help="Number of passages in the prompts.")] = 5,
    limit: Limit = 8,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of tokens of an answer.")] = 128,
    num_draft_tokens: Annotated[
        int | None, typer.Option(help="Draft rows per step; default: as many as measured costs and chances favour.")
    ] = None,
    lookup: Annotated[bool, typer.Option(help="Also measure OpenVINO GenAI, which needs twice the memory.")] = True,
    task: Task = None,
    as_json: AsJson = False,
) -> None:
    """Measure tokens per second on OpenVINO with a head of given acceptance and the cost of a head of a given shape."""
    import torch

    from antiphon.accel.engines.openvino.engine import OpenVINOEngine
    from antiphon.accel.engines.torch.engine import engine_of
    from antiphon.accel.engines.torch.loading import load_pretrained
    from antiphon.accel.language_model import LanguageModel

    console.quiet_libraries()
    if kind not in SHAPES:
        raise typer.BadParameter(f"kind is {kind!r}; give one of {', '.join(SHAPES)}.")
    loaded, tokenizer = load_pretrained(stored_shape(model))
    facts = run_facts("head_speed", model, loaded, program="python -m benchmarks.head_speed")
    if file is None:
        costs = pass_milliseconds(loaded.config, torch.get_num_threads())
        columns = {"kind": "head", "pass_ms": "pass, ms"}
        rows = [{"kind": name, "pass_ms": each} for name, each in costs.items()]
        _print(f"{model}, passes in 8 bits", columns, rows, facts, as_json=as_json)
        return
    run = head_of_shape(loaded.config, kind, torch.get_num_threads())
    heads = {name: RecordedHead(acceptance=rates, run=run) for name, rates in RATES.items()}
    engine_of(loaded).head = heads["both"]
    language_model = LanguageModel(loaded, tokenizer, name=model, engine="openvino")
    samples = load_samples(file, task=task, limit=limit)
    jobs = replay_jobs(language_model, samples, limit=max_new_tokens, passages=passages)
    engine = language_model.engine
    assert isinstance(engine, OpenVINOEngine)
    engine.lock.run(lambda: (engine.step_cost(), engine.bigrams))
    lookups = _lookups(language_model) if lookup else []
    with EngineForcing(engine, end=tokenizer.eos_token_id) as forcing:
        found: dict[str, list[Decoded]] = defaultdict(list)
        for number, job in enumerate([jobs[0], *jobs]):  # the first one warms up
            for name in ("references", *heads):
                forcing.follow(len(job.prompt), job.answer)
                found[name].append(_decode(language_model, job, name, heads.get(name), num_draft_tokens))
                if name in heads and not number:
                    heads[name].passes = 0
            for method in lookups if number else ():
                found[method.name].append(_look_up(language_model, job, method, max_new_tokens))
    figures = [_figures(name, answers[-len(jobs) :], heads.get(name)) for name, answers in found.items()]
    title = f"{model}, {len(jobs)} answers over {passages} passages, {kind}"
    _print(title, COLUMNS, figures, facts | {"file": file, "answers": len(jobs), "head": kind}, as_json=as_json)


def _lookups(language_model: LanguageModel) -> list[ReplayedGenAI]:
    """Return OpenVINO GenAI's prompt lookups, with the model exported."""
    export_for_replays(language_model.model)
    pipelines = ReplayPipelines(language_model.tokenizer.eos_token_id)
    return [ReplayedGenAI(OpenVINOGenAI(f"{GENAI_LOOKUP}:{tokens}", tokens, pipelines)) for tokens in LOOKUPS]


def _look_up(language_model: LanguageModel, job: ReplayJob, method: ReplayedGenAI, limit: int) -> Decoded:
    run = method(language_model, job, limit)
    return Decoded(len(run.tokens) - 1, run.steps, run.seconds - run.first_token_seconds, run.first_token_seconds)


def _decode(
    language_model: Any, job: ReplayJob, name: str, head: RecordedHead | None, num_draft_tokens: int | None
) -> Decoded:
    """Decode one answer, with ``head`` if it is given."""
    from antiphon.accel.generate import generate
    from antiphon.pipelines.benchmark.methods import MethodRun

    def drafter() -> Any:
        if head is not None:
            head.text = (*job.prompt, *job.answer)
        wrapped: Any = WithoutLogits(Head(head) if name == "head" and head is not None else Blend(head=head))
        wrapped.parts += (name,)  # methods do not share acceptance statistics
        return wrapped

    steps: list[Step] = []
    times: list[float] = []

    def note(step: Step) -> None:
        steps.append(step)
        times.append(process_time())

    output: Any = generate(
        language_model.model,
        job.prompt,
        references=job.references,
        tokenizer=language_model.tokenizer,
        drafter=drafter,
        engine="openvino",
        num_draft_tokens=num_draft_tokens,
        max_new_tokens=len(job.answer),
        do_sample=False,
        on_step=note,
    )
    emitted = tuple(output[0].tolist()[len(job.prompt) :])
    first, *others = steps
    seconds = sum(step.seconds for step in others)
    checked(name, MethodRun(emitted, seconds, first.seconds, len(others), None), job.answer)
    tokens = sum(len(step.tokens) for step in others)
    return Decoded(tokens, len(others), seconds, first.seconds, times[-1] - times[0])


def _figures(name: str, answers: Sequence[Decoded], head: RecordedHead | None) -> dict[str, Any]:
    tokens, steps = sum(each.tokens for each in answers), sum(each.steps for each in answers)
    seconds, prefill = sum(each.seconds for each in answers), sum(each.prefill_seconds for each in answers)
    cpu = [each.cpu_seconds for each in answers if each.cpu_seconds is not None]
    return {
        "method": name,
        "tokens_per_step": tokens / steps,
        "tokens_per_second": tokens / seconds,
        "with_prefill": (tokens + len(answers)) / (seconds + prefill),
        "step_ms": 1000 * seconds / steps,
        "cpu_ms": 1000 * sum(cpu) / tokens if cpu else None,
        "pass_ms": None if head is None else 1000 * head.stats.pass_seconds,
        "passes_per_step": None if head is None else head.passes / steps,
    }


def _print(
    title: str, columns: dict[str, str], rows: list[dict[str, Any]], facts: dict[str, Any], *, as_json: bool
) -> None:
    if as_json:
        typer.echo(json.dumps(facts | {"rows": rows}))
    else:
        console.out.print(result_table(title, columns, rows))


app = program(head_speed)

if __name__ == "__main__":
    app()
