"""Program for vLLM's Python interpreter: run requests in one engine.

It reads the job as JSON from standard input and writes the outputs as JSON to the file named there.
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path
from pkgutil import resolve_name
from typing import Any


def sampling_params(given: dict[str, Any], sources: dict[str, Any]) -> Any:
    """Return vLLM's greedy sampling parameters."""
    return resolve_name("vllm:SamplingParams")(temperature=0.0, extra_args=sources or None, **given)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Return the token ids of each request, with the number of steps that emitted them."""
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
    return {name: {"ids": list(output.token_ids), "steps": steps[name]} for name, output in outputs.items()}


if __name__ == "__main__":
    work = json.load(sys.stdin)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    Path(work["file"]).write_text(json.dumps(run(work)), encoding="utf-8")
