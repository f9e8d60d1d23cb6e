"""Every family on OpenVINO: the text and the logits of torch, or the reason why it stays there."""

import pytest
import torch

from antiphon.accel.engines.torch.traits import declared_traits
from antiphon.accel.testing.tiny import tiny_model

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'antiphon[openvino]'")

from antiphon.accel.engines.openvino.conversion import paged_model
from antiphon.accel.engines.openvino.loader import load_engine
from antiphon.accel.engines.openvino.runtime import computes_in
from antiphon.accel.engines.openvino.self_test import findings
from tests.accel.openvino.families import (
    STAY,
    TAKEN,
    expect_logits_of_torch,
    expect_reason,
    expect_text_of_torch,
    paged,
)
from tests.accel.openvino.builders import engine_of, in_precision, model_of


@pytest.mark.parametrize("family", TAKEN)
def test_tree_rows_and_kept_rows_have_the_logits_of_plain_forwards_in_torch(family: str) -> None:
    expect_logits_of_torch(family)


@pytest.mark.parametrize("family", TAKEN)
def test_drafts_that_branch_spell_the_greedy_text_of_torch(family: str) -> None:
    expect_text_of_torch(family)


@pytest.mark.parametrize("family", STAY)
def test_what_cannot_be_converted_says_why(family: str) -> None:
    expect_reason(family)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_the_self_test_agrees_with_torch_and_disagrees_with_another_model(family: str) -> None:
    model, engine = model_of(family), paged(family)
    windows = [engine.window or 0]
    assert [str(each) for each in findings(engine, model, windows) if not each.agrees] == []
    assert not all(each.agrees for each in findings(engine, model_of(family, seed=1), windows))


def test_windows_are_part_of_the_graph() -> None:
    """Without them the logits of a long text are others: what the conversion once lost without an error."""
    model = model_of("mistral")
    wrong = engine_of(model_of("mistral-full"))
    found = {each.what: each.agrees for each in findings(wrong, model, [12])}
    assert found["the prefill of a short text"]
    assert not found["the prefill of a long text"]


@pytest.mark.skipif(not computes_in("bf16"), reason="OpenVINO does not compute in bfloat16 on this processor")
def test_a_model_in_bfloat16_is_within_its_own_noise() -> None:
    model = in_precision(tiny_model("llama"), torch.bfloat16)
    engine = engine_of(model, precision="bf16")
    assert [str(each) for each in findings(engine, model, []) if not each.agrees] == []


@pytest.mark.skipif(computes_in("bf16"), reason="OpenVINO computes in bfloat16 on this processor")
def test_a_model_in_bfloat16_stays_where_the_processor_has_no_units_for_it() -> None:
    opened = load_engine(in_precision(tiny_model("llama"), torch.bfloat16), if_faster=True)
    assert (opened.engine, opened.reason) == (None, "This CPU does not compute in bfloat16 under OpenVINO.")


def test_the_model_is_left_as_it_was() -> None:
    model = in_precision(tiny_model("mixtral"), torch.bfloat16)
    settings, weights = model.config.to_json_string(), [each.data_ptr() for each in model.parameters()]
    paged_model(model, declared_traits(model))
    assert model.config.to_json_string() == settings
    assert [each.data_ptr() for each in model.parameters()] == weights
    assert model.dtype == torch.bfloat16
