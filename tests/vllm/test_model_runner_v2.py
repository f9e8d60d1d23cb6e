"""Model Runner V2 of vLLM with a tiny model, run by Triton's interpreter: drafts change no output."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
from transformers import PreTrainedModel

from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from tests.vllm.engine_process import greedy_answer, outputs, start

pytestmark = [
    pytest.mark.skipif("ANTIPHON_VLLM" not in os.environ, reason="needs an environment of vLLM's own: make test-vllm"),
    pytest.mark.timeout(900),
]
SPECULATION = {
    "method": "custom_class",
    "model": "tests.vllm.checked_proposer.CheckedProposer",
    "num_speculative_tokens": 6,
}
NEW_TOKENS = 16
NUM_REQUESTS, ABORTED = 12, (5, 8)
BLOCKS = {"max_num_seqs": 8, "block_size": 32, "num_gpu_blocks_override": 11}
"""Blocks of the KV cache: each request needs two to its end, so that some of eight requests are preempted."""

ANY_PROMPTS = [[Random(number).randrange(32, 127) for _ in range(26)] for number in range(NUM_REQUESTS)]
CHOICE = b"a blue house"
PARAMETERS: list[dict[str, Any]] = [
    {"max_tokens": NEW_TOKENS},
    {"max_tokens": NEW_TOKENS, "logprobs": 2},
    {"max_tokens": NEW_TOKENS, "min_tokens": 6, "ignore_eos": True},
    {"max_tokens": NEW_TOKENS, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"max_tokens": NEW_TOKENS, "choice": ["a red house", CHOICE.decode()]},
    {"max_tokens": NEW_TOKENS, "stop_token_ids": list(range(32))},
]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    """A tiny model whose heads have a size that vLLM's attention on CPUs computes."""
    return tiny_model("llama", num_attention_heads=2)


@pytest.fixture(scope="module")
def folder(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model in the subfolder ``model``."""
    made = tmp_path_factory.mktemp("v2")
    model.save_pretrained(made / "model")
    byte_tokenizer().save_pretrained(made / "model")
    return made


def test_outputs_with_drafts_equal_those_of_v1_without(folder: Path, model: PreTrainedModel) -> None:
    """The references are the model's own answers, to the same prompt or to its neighbour's.

    V1 needs no interpreter, so that the outputs to compare with take seconds.
    """
    answers = [greedy_answer(model, prompt, NEW_TOKENS) for prompt in ANY_PROMPTS]
    parameters = (PARAMETERS * 2)[:NUM_REQUESTS]
    plain: list[dict[str, Any]] = [
        {"prompt": prompt, "parameters": each} for prompt, each in zip(ANY_PROMPTS, parameters, strict=True)
    ]
    drafted = [
        each | {"sources": {"references": [*each["prompt"][-4:], *answers[number - number % 3 // 2], -1, *CHOICE]}}
        for number, each in enumerate(plain)
    ]
    both = [
        start(folder, "drafted", drafted, BLOCKS | {"speculative_config": SPECULATION}, is_v2=True, aborted=ABORTED),
        start(folder, "plain", plain, BLOCKS, aborted=ABORTED),
    ]
    try:
        results = [outputs(*each) for each in both]
    finally:
        for process, _ in both:
            process.kill()
    assert all(each["preempted"] for each in results), "no request was preempted"
    with_drafts, without = (each["outputs"] for each in results)
    finished = [str(number) for number in range(NUM_REQUESTS) if number not in ABORTED]
    for name in finished:
        one, other = without[name], with_drafts[name]
        assert [other[key] for key in ("ids", "text", "reason")] == [one[key] for key in ("ids", "text", "reason")]
        for expected, found in zip(one["logprobs"], other["logprobs"], strict=True):
            assert found == {token: [pytest.approx(value, abs=1e-4), rank] for token, (value, rank) in expected.items()}
    assert with_drafts["0"]["ids"] == answers[0], "V2 computes what transformers does"
    assert not (folder / "violations").exists(), (folder / "violations").read_text()
    assert "in Model Runner V2 of vLLM" in (folder / "drafted.log").read_text()
    steps = [sum(each[name]["steps"] for name in finished) for each in (with_drafts, without)]
    assert steps[0] < 0.8 * steps[1], "too few drafts were accepted for this test to mean much"
