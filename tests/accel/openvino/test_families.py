"""Every family of the table on OpenVINO: the text and the logits of torch, or the reason why it stays there."""

from typing import Any

import pytest
import torch

from antiphon.accel.drafting.draft import EMPTY, ROOT, Draft, path_to
from antiphon.accel.drafting.tree import depth_first
from antiphon.accel.drafting.verify import walk
from antiphon.accel.engines.torch.traits import declared
from antiphon.accel.testing.adversary import Thicket
from antiphon.accel.testing.families import ALL_FAMILIES
from antiphon.accel.testing.tiny import VOCABULARY, tiny_model

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'antiphon[openvino]'")

from antiphon.accel.engines.openvino.conversion import Unconvertible, paged_model
from antiphon.accel.engines.openvino.self_test import findings
from tests.accel.openvino.making import engine_of, expect_plain, in_precision, step, text_of

STAY = {
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
"""What cannot be converted, and a word of the reason."""

TAKEN = [family for family in ALL_FAMILIES if family not in STAY]
WINDOWED = {"mistral", "gemma3", "qwen2-window", "phi3-window", "starcoder2", "gpt_oss", "cohere2"}
PROMPT, NEW = 30, 24


def decoded(engine: Any, prompt: list[int], truth: list[int]) -> tuple[list[int], int]:
    """The text with drafts from a thicket around the truth, and the steps that it took; all logits of rows checked."""
    drafter, text, draft, steps = Thicket(truth, 5, VOCABULARY), list(prompt), EMPTY, 0
    sequence = engine.sequence(prompt)
    logits = step(engine, sequence, text)
    while True:
        steps += 1

        def commit(token: int) -> bool:
            text.append(token)
            return len(text) == len(truth)

        accepted = walk(draft, logits.best, commit)
        sequence.keep(accepted.path)
        if len(text) == len(truth):
            return text, steps
        draft = depth_first(sequence.fit(drafter.propose(text, 12), 12, len(truth) - len(text) - 1))
        logits = step(engine, sequence, text, draft)


@pytest.mark.parametrize("family", TAKEN)
def test_tree_rows_and_kept_rows_have_the_logits_of_plain_forwards_in_torch(family: str) -> None:
    model = tiny_model(family)
    engine = engine_of(model)
    for size in (5, 40):
        text = text_of(size, seed=size)
        sequence = engine.sequence(text)
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


@pytest.mark.parametrize("family", TAKEN)
def test_drafts_that_branch_spell_the_greedy_text_of_torch(family: str) -> None:
    model: Any = tiny_model(family)
    prompt = text_of(PROMPT)
    with torch.no_grad():
        ids = model.generate(
            torch.tensor([prompt]), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, eos_token_id=None
        )
    truth = ids[0].tolist()
    text, steps = decoded(engine_of(model), prompt, truth)
    assert text == truth
    assert steps < NEW


@pytest.mark.parametrize("family", STAY)
def test_what_cannot_be_converted_says_why(family: str) -> None:
    model = tiny_model(family)
    with pytest.raises(Unconvertible, match=STAY[family]):
        paged_model(model, declared(model))


@pytest.mark.parametrize("family", ["llama", "gemma3", "mixtral", "gpt_oss"])
def test_the_self_test_agrees_with_torch_and_disagrees_with_another_model(family: str) -> None:
    model = tiny_model(family)
    engine = engine_of(model)
    windows = [engine.window or 0]
    assert [str(each) for each in findings(engine, model, windows) if not each.agrees] == []
    assert not all(each.agrees for each in findings(engine, tiny_model(family, seed=1), windows))


def test_windows_are_part_of_the_graph() -> None:
    """Without them the logits of a long text are others: what the conversion once lost without an error."""
    model = tiny_model("mistral")
    wrong = engine_of(tiny_model("mistral-full"))
    found = {each.what: each.agrees for each in findings(wrong, model, [12])}
    assert found["the prefill of a short text"]
    assert not found["the prefill of a long text"]


def test_a_model_in_bfloat16_is_within_its_own_noise() -> None:
    model = in_precision(tiny_model("llama"), torch.bfloat16)
    engine = engine_of(model, precision="bf16")
    assert [str(each) for each in findings(engine, model, []) if not each.agrees] == []


def test_the_model_is_left_as_it_was() -> None:
    model = in_precision(tiny_model("mixtral"), torch.bfloat16)
    settings, weights = model.config.to_json_string(), [each.data_ptr() for each in model.parameters()]
    paged_model(model, declared(model))
    assert model.config.to_json_string() == settings
    assert [each.data_ptr() for each in model.parameters()] == weights
    assert model.dtype == torch.bfloat16
