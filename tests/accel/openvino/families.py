"""Checks of a model family on OpenVINO: text and logits equal torch's, or the reason why it stays on torch."""

from functools import cache
from typing import Any

import pytest
import torch

from antiphon.accel.drafting.draft import EMPTY, ROOT, Draft, path_to
from antiphon.accel.drafting.tree import reorder_depth_first
from antiphon.accel.drafting.verify import verify
from antiphon.accel.engines.torch.traits import declared_traits
from antiphon.accel.testing.drafters import RandomTreeDrafter
from antiphon.accel.testing.tiny import VOCAB_SIZE
from tests.families.table import ALL_FAMILIES, tiny_model

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'antiphon[openvino]'")

from antiphon.accel.engines.openvino.conversion import UnsupportedModelError, paged_model
from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from tests.accel.openvino.builders import engine_of, expect_plain, model_of, step, text_of

UNSUPPORTED = {
    "gptj": "does not go through",
    "falcon": "does not go through",
    "falcon-alibi": "does not go through",
    "gpt_neo": "does not go through",
    "gemma2": "softcap",
    "llama4": "within chunks",
    "phi3-longrope": "rotary frequencies",
    "llama-longrope": "rotary frequencies",
    "llama-dynamic": "rotary frequencies",
    "bloom": "no position_ids",
    "mpt": "no position_ids",
    **dict.fromkeys(("mamba2", "zamba2", "qwen3_next", "bamba", "lfm2", "mamba", "jamba"), "state"),
    "recurrent_gemma": "state",
}
"""Families that cannot be converted, and a part of the reason."""

SUPPORTED = [family for family in ALL_FAMILIES if family not in UNSUPPORTED]
WINDOWED = {"mistral", "gemma3", "qwen2-window", "phi3-window", "starcoder2", "gpt_oss", "cohere2"}
PROMPT, NEW = 30, 24


def decoded(engine: Any, prompt: list[int], truth: list[int]) -> tuple[list[int], int]:
    """Return the text decoded with random draft trees around the expected text, and the number of steps."""
    drafter, text, draft, steps = RandomTreeDrafter(truth, 5, VOCAB_SIZE), list(prompt), EMPTY, 0
    sequence = engine.sequence(tenant=object())
    logits = step(engine, sequence, text)
    while True:
        steps += 1

        def commit(token: int) -> bool:
            text.append(token)
            return len(text) == len(truth)

        accepted = verify(draft, logits.argmax, commit)
        sequence.keep(accepted.path)
        if len(text) == len(truth):
            return text, steps
        draft = reorder_depth_first(sequence.fit(drafter.propose(text, 12), 12, len(truth) - len(text) - 1))
        logits = step(engine, sequence, text, draft)


@cache
def paged(family: str) -> OpenVINOEngine:
    """Return the engine of a family's tiny model, converted once for all checks."""
    return engine_of(model_of(family))


def expect_logits_of_torch(family: str) -> None:
    """Check that tree rows and kept rows have the logits of plain forward passes in torch."""
    model, engine = model_of(family), paged(family)
    for size in (5, 40):
        text = text_of(size, seed=size)
        sequence = engine.sequence(tenant=object())
        expect_plain(model, text, EMPTY, step(engine, sequence, text))
        sequence.keep(())
        for _ in range(2):
            text = [*text, 17]
            draft = sequence.fit(Draft(tuple(text_of(6, 1)), (ROOT, ROOT, 1, 0, 2, 4), (1.0,) * 6), 6, 6)
            expect_plain(model, text, draft, step(engine, sequence, text, draft))
            path = path_to(draft, len(draft) - 1)
            assert len(path) > 1
            sequence.keep(path)
            text = [*text, *(draft.tokens[row] for row in path)]
            assert sequence.length == len(text)
        if size == 40:
            assert sequence.level == ("linear" if family in WINDOWED else "tree")


def expect_text_of_torch(family: str) -> None:
    """Check that branching drafts give the greedy text of torch, in fewer steps."""
    model: Any = model_of(family)
    prompt = text_of(PROMPT)
    with torch.no_grad():
        ids = model.generate(
            torch.tensor([prompt]), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, eos_token_id=None
        )
    truth = ids[0].tolist()
    text, steps = decoded(paged(family), prompt, truth)
    assert text == truth
    assert steps < NEW


def expect_reason(family: str) -> None:
    """Check that conversion fails with the expected reason."""
    model = tiny_model(family)
    with pytest.raises(UnsupportedModelError, match=UNSUPPORTED[family]):
        paged_model(model, declared_traits(model))


def expect_exact(family: str) -> None:
    """Run all checks of a family."""
    if family in UNSUPPORTED:
        expect_reason(family)
    else:
        expect_logits_of_torch(family)
        expect_text_of_torch(family)
