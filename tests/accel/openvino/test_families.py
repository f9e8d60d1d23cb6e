"""Every family on OpenVINO: text and logits equal torch's, or the reason why it stays on torch."""

from functools import cache

import pytest
import torch

from antiphon.accel.drafting.draft import EMPTY, ROOT, Draft, path_to
from antiphon.accel.engines.torch.engine import traits_of
from tests.tiny import tiny_model

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")

from antiphon.accel.engines.openvino.conversion import UnsupportedModelError, paged_model
from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.openvino.runtime import supports_precision
from antiphon.accel.engines.openvino.self_test import run_self_test
from tests.accel.openvino.builders import engine_of, expect_plain, in_precision, model_of, step, text_of
from tests.families.check import check_model
from tests.families.table import ALL_FAMILIES
from tests.table_part import part

pytestmark = pytest.mark.slow

UNSUPPORTED = {
    "gptj": "does not go through",
    "falcon": "does not go through",
    **dict.fromkeys(("falcon-alibi", "gpt_neo"), "branching draft"),
    **dict.fromkeys(("gemma2", "vaultgemma"), "softcap"),
    "llama4": "within chunks",
    "bloom": "no position_ids",
    "mpt": "no position_ids",
    "kimi_linear": "after the last row only",
    **dict.fromkeys(("mamba", "jamba", "recurrent_gemma"), "one by one"),
    **dict.fromkeys(("zamba2", "nemotron_h"), "in prefills only"),
}
"""Families that cannot be converted, and a part of the reason."""

SUPPORTED = [family for family in ALL_FAMILIES if family not in UNSUPPORTED]
WINDOWED = {
    *("mistral", "gemma3", "qwen2-window", "phi3-window", "starcoder2", "gpt_oss", "cohere2", "lfm3", "olmo3", "cwm"),
    *("granite_swa", "exaone4", "exaone_moe", "ministral", "gemma4", "gemma3n"),
}
USUAL = ("llama", "gemma3", "gpt_oss", "qwen3_5", "granitemoehybrid", "lfm2")


@cache
def paged(family: str) -> OpenVINOEngine:
    """Return the engine of a family's tiny model, converted once for all checks."""
    return engine_of(model_of(family))


@pytest.mark.parametrize("family", part(SUPPORTED, (*USUAL, "phi3-longrope")))
def test_tree_rows_and_kept_rows_have_the_logits_of_torch(family: str) -> None:
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


@pytest.mark.parametrize("family", part(SUPPORTED, USUAL))
def test_branching_drafts_give_the_text_and_logits_of_torch(family: str) -> None:
    result = check_model(model_of(family), "greedy", ("random trees",), engine="openvino")["random trees"]
    assert result.passes
    assert result.steps < result.tokens


@pytest.mark.parametrize("family", part(UNSUPPORTED, ("gemma2", "zamba2", "mamba")))
def test_unsupported_families_report_the_reason(family: str) -> None:
    model = model_of(family)
    with pytest.raises(UnsupportedModelError, match=UNSUPPORTED[family]):
        paged_model(model, traits_of(model))


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_the_self_test_passes_for_the_model_and_fails_for_another_one(family: str) -> None:
    model, engine = model_of(family), paged(family)
    windows = [engine.window or 0]
    assert [str(each) for each in run_self_test(engine, model, windows) if not each.agrees] == []
    assert not all(each.agrees for each in run_self_test(engine, model_of(family, seed=1), windows))


def test_sliding_windows_are_part_of_the_graph() -> None:
    """An earlier conversion lost the windows without an error; the logits of a long text show it."""
    model = model_of("mistral")
    wrong = engine_of(model_of("mistral-full"))
    found = {each.name: each.agrees for each in run_self_test(wrong, model, [12])}
    assert found["prefill of a short text"]
    assert not found["prefill of a long text"]


@pytest.mark.skipif(not supports_precision("bf16"), reason="OpenVINO does not compute in bfloat16 on this processor")
def test_a_bfloat16_model_differs_by_rounding_noise_only() -> None:
    model = in_precision(tiny_model("llama"), torch.bfloat16)
    engine = engine_of(model, precision="bf16")
    assert [str(each) for each in run_self_test(engine, model, []) if not each.agrees] == []
