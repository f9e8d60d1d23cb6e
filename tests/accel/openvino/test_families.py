"""Every family on OpenVINO: text and logits equal torch's, or the reason why it stays on torch."""

import pytest
import torch

from antiphon.accel.engines.torch.traits import declared_traits
from antiphon.accel.testing.tiny import tiny_model

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'antiphon[openvino]'")

from antiphon.accel.engines.openvino.conversion import paged_model
from antiphon.accel.engines.openvino.loader import load_engine
from antiphon.accel.engines.openvino.runtime import supports_precision
from antiphon.accel.engines.openvino.self_test import run_self_test
from tests.accel.openvino.builders import engine_of, in_precision, model_of
from tests.accel.openvino.families import (
    SUPPORTED,
    UNSUPPORTED,
    expect_logits_of_torch,
    expect_reason,
    expect_text_of_torch,
    paged,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("family", SUPPORTED)
def test_tree_rows_and_kept_rows_have_the_logits_of_torch(family: str) -> None:
    expect_logits_of_torch(family)


@pytest.mark.parametrize(
    "family",
    [pytest.param(each, marks=[pytest.mark.exhaustive] if place % 3 else []) for place, each in enumerate(SUPPORTED)],
)
def test_branching_drafts_give_the_greedy_text_of_torch(family: str) -> None:
    expect_text_of_torch(family)


@pytest.mark.parametrize("family", UNSUPPORTED)
def test_unsupported_families_report_the_reason(family: str) -> None:
    expect_reason(family)


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


@pytest.mark.skipif(supports_precision("bf16"), reason="OpenVINO computes in bfloat16 on this processor")
def test_a_bfloat16_model_stays_on_torch_if_the_processor_does_not_support_it() -> None:
    loaded = load_engine(in_precision(tiny_model("llama"), torch.bfloat16), if_faster=True)
    assert (loaded.engine, loaded.reason) == (None, "This CPU does not compute in bfloat16 under OpenVINO.")


def test_conversion_does_not_change_the_model() -> None:
    model = in_precision(tiny_model("mixtral"), torch.bfloat16)
    settings, weights = model.config.to_json_string(), [each.data_ptr() for each in model.parameters()]
    paged_model(model, declared_traits(model))
    assert model.config.to_json_string() == settings
    assert [each.data_ptr() for each in model.parameters()] == weights
    assert model.dtype == torch.bfloat16
