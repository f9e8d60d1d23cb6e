"""References together with an EAGLE head in vLLM, with a tiny model: answers equal plain decoding."""

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from recipes.eagle_head import EagleHead, hidden_states, loss
from tests.tiny import save_model, tiny_model
from tests.vllm.engine_process import greedy_answer, outputs, start

pytestmark = [
    pytest.mark.skipif("ANTIPHON_VLLM" not in os.environ, reason="needs an environment of vLLM's own: make test-vllm"),
    pytest.mark.timeout(900),
]
NEW_TOKENS, NUM_REQUESTS, TRAINING_STEPS = 24, 40, 80
PROMPTS = [[Random(number).randrange(32, 127) for _ in range(20)] for number in range(NUM_REQUESTS)]


def train_head(model: PreTrainedModel, texts: list[list[int]]) -> EagleHead:
    """Return a head that has learned some of these texts."""
    torch.manual_seed(0)
    found = [hidden_states(model, text) for text in texts]
    tokens, hidden = torch.stack([each[0] for each in found]), torch.stack([each[1] for each in found])
    head = EagleHead(model.config)
    optimizer = torch.optim.AdamW(head.parameters(), lr=5e-3)
    for _ in range(TRAINING_STEPS):
        optimizer.zero_grad()
        loss(head, model, tokens, hidden).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return head


def test_answers_with_references_and_a_head_equal_plain_decoding(tmp_path: Path) -> None:
    """Every other request has its own answer as a reference; the head has learned the others' answers."""
    model = tiny_model("llama", num_attention_heads=2)
    save_model(model, tmp_path / "model")
    answers = [greedy_answer(model, prompt, NEW_TOKENS) for prompt in PROMPTS]
    texts = [prompt + answer for prompt, answer in zip(PROMPTS, answers, strict=True)]
    train_head(model, texts[1::2]).save(tmp_path / "head", model.config)
    speculation = {"method": "eagle", "model": str(tmp_path / "head"), "num_speculative_tokens": 8}
    engine = {"max_num_seqs": 8, "speculative_config": speculation | {"disable_padded_drafter_batch": True}}
    parameters = {"max_tokens": NEW_TOKENS}
    requests: list[dict[str, Any]] = [
        {"prompt": prompt, "parameters": parameters, "sources": {} if number % 2 else {"references": texts[number]}}
        for number, prompt in enumerate(PROMPTS)
    ]
    process, file = start(tmp_path, "both", requests, engine, environment={"ANTIPHON_HEAD_TOKENS": "3"})
    found = [outputs(process, file)[str(number)] for number in range(NUM_REQUESTS)]
    assert [each["ids"] for each in found] == answers
    steps = [sum(each["steps"] for each in found[first::2]) for first in (0, 1)]
    tokens = [sum(len(answer) for answer in answers[first::2]) for first in (0, 1)]
    assert steps[0] < tokens[0] / 3, "references match"
    assert steps[1] < 0.8 * tokens[1], "the head's tokens are accepted where nothing else matches"
    log = file.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
    assert "Antiphon combines references with the model's own head (eagle): up to 8 tokens a step" in log
