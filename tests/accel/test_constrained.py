"""Constrained decoding: with a grammar library as logits processor, drafts do not change the text."""

import json
import re
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedTokenizerFast

from antiphon.accel.decoding.stats import Step
from antiphon.accel.drafting.drafters.blend import Blend
from antiphon.accel.generate import generate
from tests.accel.adversarial_drafters import RandomTreeDrafter
from tests.tiny import EOS, VOCAB_SIZE, byte_tokenizer, tiny_model

PROMPT = "Which libraries are named, and how often? Answer in JSON."
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "library": {"type": "string", "pattern": "^[a-z]{3,8}$"},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
        "kinds": {"type": "array", "items": {"enum": ["dense", "sparse", "hybrid"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["library", "count", "kinds"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
DATE = r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
GRAMMARS = {
    "JSON schema": LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA)),
    "regular expression": LLMatcher.grammar_from_regex(DATE),
}
MODES: dict[str, dict[str, Any]] = {"greedy": {"do_sample": False}, "sampled": {"do_sample": True, "top_k": 0}}


@cache
def tokenizer() -> Any:
    return byte_tokenizer()


@cache
def matcher_tokenizer() -> Any:
    assert isinstance(tokenizer(), PreTrainedTokenizerFast)
    return from_tokenizer(tokenizer(), n_vocab=VOCAB_SIZE)


class Grammar(LogitsProcessor):
    """llguidance as a processor: its matcher reads every token once, and only allowed tokens keep their scores."""

    def __init__(self, grammar: str, prompt: int) -> None:
        self.matcher = LLMatcher(matcher_tokenizer(), grammar)
        self.read = prompt

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        fresh = input_ids[0, self.read :].tolist()
        assert self.matcher.consume_tokens(fresh), f"the grammar was shown {fresh}, which it had forbidden"
        self.read += len(fresh)
        bits = np.frombuffer(self.matcher.compute_bitmask(), dtype=np.uint8)
        admitted = np.unpackbits(bits, bitorder="little", count=scores.shape[-1])
        return scores.masked_fill(torch.from_numpy(admitted == 0), -torch.inf)


@cache
def model() -> Any:
    return tiny_model(seed=11)


def constrained(name: str, mode: str, seed: int, run: Any, **options: Any) -> list[int]:
    """Return the ids of a constrained answer, without prompt and end token."""
    ids = tokenizer()(PROMPT, return_tensors="pt").input_ids
    torch.manual_seed(seed)
    output = run(
        ids, logits_processor=[Grammar(GRAMMARS[name], ids.shape[1])], eos_token_id=EOS, pad_token_id=EOS,
        max_new_tokens=120, **MODES[mode], **options,
    )  # fmt: skip
    tokens: list[int] = output[0, ids.shape[1] :].tolist()
    assert tokens.pop() == EOS
    return tokens


def expect_valid(name: str, text: str) -> None:
    if name == "regular expression":
        assert re.fullmatch(DATE, text)
        return
    answer = json.loads(text)
    assert sorted(answer) == sorted(SCHEMA["required"])
    assert re.fullmatch("[a-z]{3,8}", answer["library"])
    assert 0 <= answer["count"] <= 999
    assert 1 <= len(answer["kinds"]) <= 3
    assert set(answer["kinds"]) <= {"dense", "sparse", "hybrid"}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", GRAMMARS)
def test_constrained_answers_parse_and_equal_plain_decoding(name: str, mode: str, seed: int) -> None:
    expected = constrained(name, mode, seed, model().generate)
    expect_valid(name, tokenizer().decode(expected))
    text = tokenizer()(PROMPT).input_ids + expected + [EOS]
    run = partial(generate, model(), num_draft_tokens=32, drafter=lambda: RandomTreeDrafter(text, seed, VOCAB_SIZE))
    assert constrained(name, mode, seed, run) == expected


def test_a_constrained_answer_copied_from_a_reference_takes_few_forward_passes() -> None:
    expected = constrained("JSON schema", "greedy", 1, model().generate)
    steps: list[Step] = []
    run = partial(generate, model(), num_draft_tokens=32, drafter=Blend, references=[expected], on_step=steps.append)
    assert constrained("JSON schema", "greedy", 1, run) == expected
    assert len(steps) < len(expected) / 2
