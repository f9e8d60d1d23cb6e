"""Compressed weights: a different model, whose outputs do not depend on drafts either."""

from typing import Any

import pytest
import torch

from antiphon.accel import LanguageModel, PrefixCache
from antiphon.accel.decoding.options import DecodingOptions
from antiphon.accel.engines.selection import select_engine
from antiphon.accel.model_report import inspect_model
from tests.tiny import byte_tokenizer, tiny_model

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")

from antiphon.accel.engines.openvino import compression
from antiphon.accel.engines.openvino.loader import load_engine
from antiphon.accel.engines.openvino.runtime import supports_precision
from antiphon.accel.engines.openvino.store import fingerprint, folder_of, load_or_convert
from tests.accel.openvino.builders import graph_of, in_precision, model_of

pytestmark = pytest.mark.slow

PROMPT = "A queen lays as many as two thousand eggs on a summer's day."
PARAMETERS: dict[str, Any] = {"references": ["Bees live in colonies.", PROMPT], "max_new_tokens": 40}
needs_nncf = pytest.mark.skipif(not compression.is_installed(), reason="nncf is not installed: antiphon[int8]")
without_nncf = pytest.mark.skipif(compression.is_installed(), reason="nncf is installed")


@pytest.fixture(scope="module", params=["int8", "int4"])
def compressed(request: pytest.FixtureRequest) -> LanguageModel:
    return LanguageModel(model_of(), byte_tokenizer(), engine="openvino", weights=request.param, memory=2**23)


@needs_nncf
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.9, "seed": 3}, {"num_draft_tokens": 5}], ids=str)
def test_drafts_do_not_change_the_outputs_of_the_compressed_model(
    compressed: LanguageModel, settings: dict[str, Any]
) -> None:
    drafted = compressed.generate(PROMPT, **PARAMETERS, **({"num_draft_tokens": 8} | settings))
    alone = compressed.generate(PROMPT, **PARAMETERS, **(settings | {"drafter": "nothing", "num_draft_tokens": None}))
    assert drafted.tokens == alone.tokens
    assert drafted.steps.drafted > alone.steps.drafted == 0


@needs_nncf
def test_compressed_weights_are_reported_in_summary_and_reason(compressed: LanguageModel) -> None:
    weights = compressed.options.weights
    completion = compressed.generate(PROMPT, max_new_tokens=3)
    assert completion.steps.weights == completion.steps.as_dict()["weights"] == weights
    assert f"with {weights} weights, as requested: a different model" in compressed.selected.reason
    assert f"with {weights} weights" in inspect_model(compressed.model, engine=compressed.options.engine_choice).engine


@needs_nncf
def test_a_wrong_graph_is_rejected_with_compressed_weights_too() -> None:
    model = model_of("llama", seed=8)
    load_or_convert(folder_of(fingerprint(model, "int8")), lambda: graph_of(model_of("llama")))
    with pytest.raises(
        ValueError, match=r"weights is 'int8', .*logits differ from this model's; prefill with compressed"
    ):
        select_engine(model, "openvino-int8")


@needs_nncf
@pytest.mark.parametrize(
    ("family", "dtype"),
    [("mistral", torch.float32), ("gemma3", torch.float32), ("qwen3_moe", torch.float32), ("llama", torch.bfloat16)],
)
def test_other_families_and_half_precision_pass_the_self_test(family: str, dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16 and not supports_precision("bf16"):
        pytest.skip("OpenVINO does not compute in bfloat16 on this processor")
    model = in_precision(tiny_model(family, seed=9), dtype)
    engine, reason = load_engine(model, weights="int8", memory=2**22)
    assert engine is not None, reason


@needs_nncf
def test_requests_that_need_torch_are_rejected(compressed: LanguageModel) -> None:
    compressed.model.train()
    with pytest.raises(ValueError, match="which OpenVINO alone has, and this request needs torch"):
        compressed.generate(PROMPT, max_new_tokens=3)
    compressed.model.eval()
    prefix = PrefixCache()
    assert compressed.generate(PROMPT, prefix=prefix, max_new_tokens=9).tokens == compressed.generate(
        PROMPT, max_new_tokens=9
    ).tokens  # fmt: skip


@without_nncf
def test_without_nncf_the_error_names_the_extra() -> None:
    with pytest.raises(
        ValueError, match=r"weights is 'int8', .*: Compressed weights need nncf: pip install 'antiphon\[int8\]'"
    ):
        LanguageModel(model_of(), byte_tokenizer(), engine="auto", weights="int8")
    with pytest.raises(ImportError, match=r"pip install 'antiphon\[int8\]'"):
        compression.compress(graph_of(model_of()), "int8")


@pytest.mark.parametrize("options", [{"engine": "torch"}, {"reproducible": True, "engine": "auto"}, {"compiled": True}])
def test_options_that_only_torch_supports_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="weights is 'int8', which OpenVINO alone has; leave out what only torch does"):
        DecodingOptions(weights="int8", **options)
