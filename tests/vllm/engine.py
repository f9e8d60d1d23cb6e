"""Program for vLLM's Python interpreter: run requests in one engine, in Model Runner V1 or V2.

It reads the job as JSON from standard input and writes the outputs as JSON to the file named there. V2 needs Triton,
whose release on PyPI cannot compile for CPUs. Its interpreter runs the kernels in Python, at some two seconds a step.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

INTERPRETER = {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}

STEPS_BEFORE_ABORT = 20
"""Number of steps, added over all requests, after which the requests to abort are aborted."""


def use_interpreter() -> None:
    """Make vLLM believe that Triton compiles for CPUs; must run before vLLM is imported."""
    os.environ.update(INTERPRETER)
    resolve_name("triton.backends:backends")["cpu"] = SimpleNamespace(driver=None, compiler=None)
    builder = resolve_name("triton.runtime.interpreter:InterpreterBuilder")
    store = builder.create_masked_store

    def create_masked_store(self: Any, pointers: Any, value: Any, mask: Any, policy: Any) -> Any:
        mask.data = mask.data.astype(bool)  # the interpreter computes some masks of vLLM's kernels as integers
        return store(self, pointers, value, mask, policy)

    builder.create_masked_store = create_masked_store


def sampling_params(given: dict[str, Any], sources: dict[str, Any]) -> Any:
    """Return vLLM's greedy sampling parameters."""
    given = dict(given)
    if choice := given.pop("choice", None):
        given["structured_outputs"] = resolve_name("vllm.sampling_params:StructuredOutputsParams")(choice=choice)
    return resolve_name("vllm:SamplingParams")(temperature=0.0, extra_args=sources or None, **given)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Return the output of each request, with the number of steps that emitted its tokens, and all preemptions."""
    preempted = record_preemptions()
    engine = resolve_name("vllm:LLMEngine").from_engine_args(resolve_name("vllm:EngineArgs")(**job["engine"]))
    for number, each in enumerate(job["requests"]):
        parameters = sampling_params(each["parameters"], each.get("sources", {}))
        engine.add_request(str(number), {"prompt_token_ids": each["prompt"]}, parameters)
    outputs: dict[str, Any] = {}
    steps: Counter[str] = Counter()
    while engine.has_unfinished_requests():
        for output in engine.step():
            outputs[output.request_id] = output.outputs[0]
            steps[output.request_id] += 1
        if steps.total() > STEPS_BEFORE_ABORT:
            engine.abort_request([str(number) for number in job["aborted"]])
    found = {name: described(output) | {"steps": steps[name]} for name, output in outputs.items()}
    return {"outputs": found, "preempted": preempted}


def record_preemptions() -> list[str]:
    """Return a list to which vLLM's scheduler appends the id of each request that it preempts."""
    scheduler, preempted = resolve_name("vllm.v1.core.sched.scheduler:Scheduler"), list[str]()
    preempt = scheduler._preempt_request

    def _preempt_request(self: Any, request: Any, *arguments: Any, **options: Any) -> None:
        preempted.append(request.request_id)
        preempt(self, request, *arguments, **options)

    scheduler._preempt_request = _preempt_request
    return preempted


def described(output: Any) -> dict[str, Any]:
    """Return text, token ids, finish reason and log-probabilities of vLLM's output of one request."""
    places = [
        {str(token): [each.logprob, each.rank] for token, each in place.items()} for place in output.logprobs or ()
    ]
    stop = output.stop_reason
    return {
        "text": output.text,
        "ids": list(output.token_ids),
        "reason": [output.finish_reason, stop],
        "logprobs": places,
    }


if __name__ == "__main__":
    work = json.load(sys.stdin)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if work["is_v2"]:
        use_interpreter()
    Path(work["file"]).write_text(json.dumps(run(work)), encoding="utf-8")
