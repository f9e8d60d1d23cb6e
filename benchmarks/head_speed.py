"""Speed with a recorded draft head on OpenVINO: references alone, the head alone, both, and both with a wrong head.

Every forward pass of the model and every pass of a head of its shape is computed in full.

python -m benchmarks.head_speed FILE --model qwen2.5-0.5b
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from antiphon.accel.decoding.stats import Step
from antiphon.accel.drafting.drafters import Blend
from antiphon.accel.drafting.drafters.head import Head
from antiphon.pipelines.benchmark.facts import run_facts
from antiphon.pipelines.benchmark.samples import load_samples
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import AsJson, Limit, Task
from antiphon.pipelines.rendering.tables import result_table
from benchmarks.forced_methods import ReplayJob, WithoutLogits, replay_jobs
from benchmarks.heads import ACCEPTANCE, RecordedHead
from benchmarks.program import program
from benchmarks.shapes import stored_shape
from benchmarks.teacher_forcing import EngineForcing

if TYPE_CHECKING:
    from antiphon.accel.drafting.draft import Drafter

DRAFT_VOCAB = 32_000
"""Vocabulary of the head, as most EAGLE-3 heads have it."""

COLUMNS = {
    "method": "drafts",
    "tokens_per_step": "tokens per step",
    "tokens_per_second": "tokens/s",
    "with_prefill": "with prefill",
    "step_ms": "step, ms",
    "passes_per_step": "passes per step",
    "pass_ms": "pass, ms",
}


def head_of_shape(config: Any, threads: int) -> Callable[[int], object]:
    """Return a function that computes a pass of an EAGLE-3 head of a model's shape over a number of tokens.

    It computes all products of the head with random weights in 16 bits, and the logits of the last token; attention
    over the context, which is a small part of a layer, is left out.
    """
    from openvino import Model, opset13

    from antiphon.accel.engines.openvino.quantized_head import compile_head

    random, size, inner = np.random.default_rng(0), config.hidden_size, config.intermediate_size
    keys = 2 * config.num_key_value_heads * size // config.num_attention_heads

    def product(node: Any, rows: int, columns: int) -> Any:
        weights = random.standard_normal((rows, columns), dtype=np.float32).astype(np.float16)
        return opset13.matmul(node, opset13.convert(opset13.constant(weights), "f32"), False, True)

    states = opset13.parameter([-1, 3 * size], np.float32)
    hidden = product(states, size, 3 * size)
    attended = product(opset13.concat([hidden, hidden], 1), size + keys, 2 * size)
    hidden = product(opset13.gather(attended, np.arange(size), 1), size, size)
    gated = opset13.multiply(opset13.swish(product(hidden, inner, size)), product(hidden, inner, size))
    last = opset13.gather(product(gated, size, inner), np.array([-1]), 0)
    request = compile_head(Model([product(last, DRAFT_VOCAB, size)], [states], "head"), "f32", threads)
    return lambda tokens: request.infer([np.ones((tokens, 3 * size), dtype=np.float32)])


def head_speed(
    file: Annotated[str, typer.Argument(help="Recorded answers as JSONL.")],
    model: Annotated[str, typer.Option(help="A shape of benchmarks/shapes.py.")] = "qwen2.5-0.5b",
    passages: Annotated[int, typer.Option(help="Number of passages in the prompts.")] = 5,
    limit: Limit = 8,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of tokens of an answer.")] = 128,
    task: Task = None,
    as_json: AsJson = False,
) -> None:
    """Measure tokens per second on OpenVINO with a head of given acceptance and the cost of an EAGLE-3 head."""
    import torch

    from antiphon.accel.engines.openvino.engine import OpenVINOEngine
    from antiphon.accel.engines.torch.engine import engine_of
    from antiphon.accel.engines.torch.loading import load_pretrained
    from antiphon.accel.language_model import LanguageModel

    console.quiet_libraries()
    loaded, tokenizer = load_pretrained(stored_shape(model))
    run = head_of_shape(loaded.config, torch.get_num_threads())
    heads = {name: RecordedHead(acceptance=rates, run=run) for name, rates in _rates().items()}
    engine_of(loaded).head = heads["both"]
    language_model = LanguageModel(loaded, tokenizer, name=model, engine="openvino")
    engine = language_model.engine
    assert isinstance(engine, OpenVINOEngine)
    engine.lock.run(lambda: (engine.step_cost(), engine.bigrams))
    jobs = replay_jobs(
        language_model, load_samples(file, task=task, limit=limit), limit=max_new_tokens, passages=passages
    )
    found: dict[str, list[list[Step]]] = defaultdict(list)
    with EngineForcing(engine, end=tokenizer.eos_token_id) as forcing:
        for number, job in enumerate([jobs[0], *jobs]):  # the first one warms up
            for name in ("references", *heads):
                forcing.follow(len(job.prompt), job.answer)
                steps = _decode(language_model, job, name, heads.get(name))
                if number:
                    found[name].append(steps)
                elif name in heads:
                    heads[name].passes = 0
    figures = [_figures(name, answers, heads.get(name)) for name, answers in found.items()]
    facts = run_facts("head_speed", model, loaded, program="python -m benchmarks.head_speed")
    if as_json:
        typer.echo(json.dumps(facts | {"file": file, "answers": len(jobs), "methods": figures}))
        return
    console.out.print(result_table(f"{model}, {len(jobs)} answers over {passages} passages", COLUMNS, figures))


def _rates() -> dict[str, tuple[float, ...]]:
    return {"head": ACCEPTANCE, "both": ACCEPTANCE, "both, always wrong": (0.0,)}


def _decode(language_model: Any, job: ReplayJob, name: str, head: RecordedHead | None) -> list[Step]:
    from antiphon.accel.generate import generate

    def drafter() -> Drafter:
        if head is not None:
            head.text = (*job.prompt, *job.answer)
        return WithoutLogits(Blend(head=head) if head is None or name != "head" else Head(head))

    steps: list[Step] = []
    output: Any = generate(
        language_model.model,
        job.prompt,
        references=job.references,
        tokenizer=language_model.tokenizer,
        drafter=drafter,
        engine="openvino",
        max_new_tokens=len(job.answer),
        do_sample=False,
        on_step=steps.append,
    )
    if tuple(output[0].tolist()[len(job.prompt) :]) != job.answer:
        raise ValueError(f"{name} emitted other tokens than the recorded ones.")
    return steps


def _figures(name: str, answers: list[list[Step]], head: RecordedHead | None) -> dict[str, Any]:
    steps = [step for answer in answers for step in answer[1:]]
    tokens, seconds = sum(len(step.tokens) for step in steps), sum(step.seconds for step in steps)
    prefill = sum(answer[0].seconds for answer in answers)
    return {
        "method": name,
        "tokens_per_step": tokens / len(steps),
        "tokens_per_second": tokens / seconds,
        "with_prefill": (tokens + len(answers)) / (seconds + prefill),
        "step_ms": 1000 * seconds / len(steps),
        "pass_ms": None if head is None else 1000 * head.stats.pass_seconds,
        "passes_per_step": None if head is None else head.passes / len(steps),
    }


app = program(head_speed)

if __name__ == "__main__":
    app()
