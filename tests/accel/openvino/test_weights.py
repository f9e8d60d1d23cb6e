"""Weights of 8 and 4 bits: another model, whose texts drafts do not change, and of which nothing is claimed."""

from typing import Any

import pytest
import torch

from antiphon.accel import LanguageModel, PrefixCache
from antiphon.accel.decoding.options import DecodingOptions
from antiphon.accel.engines.selection import select_engine
from antiphon.accel.testing.model_report import inspect_model
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'antiphon[openvino]'")

from antiphon.accel.engines.openvino import compression
from antiphon.accel.engines.openvino.loader import load_engine
from antiphon.accel.engines.openvino.store import WEIGHTS, fingerprint, folder_of, keep
from tests.accel.openvino.builders import graph_of, in_precision, model_of

PROMPT = "A queen lays as many as two thousand eggs on a summer's day."
ASKED: dict[str, Any] = {"references": ["Bees live in colonies.", PROMPT], "max_new_tokens": 40}
with_nncf = pytest.mark.skipif(not compression.is_installed(), reason="nncf is not installed: antiphon[int8]")
without_nncf = pytest.mark.skipif(compression.is_installed(), reason="nncf is installed")


@pytest.fixture(scope="module", params=["int8", "int4"])
def few_bits(request: pytest.FixtureRequest) -> LanguageModel:
    return LanguageModel(model_of(), byte_tokenizer(), engine="openvino", weights=request.param, memory=2**23)


@with_nncf
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.9, "seed": 3}, {"num_draft_tokens": 5}], ids=str)
def test_drafted_texts_are_those_of_plain_decoding_of_that_model(
    few_bits: LanguageModel, settings: dict[str, Any]
) -> None:
    drafted = few_bits.generate(PROMPT, **ASKED, **({"num_draft_tokens": 8} | settings))
    alone = few_bits.generate(PROMPT, **ASKED, **(settings | {"drafter": "nothing", "num_draft_tokens": None}))
    assert drafted.tokens == alone.tokens
    assert drafted.steps.drafted > alone.steps.drafted == 0


@with_nncf
def test_a_batch_says_what_each_says_alone(few_bits: LanguageModel) -> None:
    prompts = [PROMPT, "Wax.", "Honey keeps " * 5]
    texts = few_bits.generate_batch(prompts, max_new_tokens=30)
    alone = [few_bits.generate(prompt, max_new_tokens=30, drafter="nothing") for prompt in prompts]
    assert [each.tokens for each in texts] == [each.tokens for each in alone]


@with_nncf
def test_that_it_is_another_model_is_said_wherever_it_speaks(few_bits: LanguageModel) -> None:
    weights = few_bits.options.weights
    said = few_bits.generate(PROMPT, max_new_tokens=3)
    assert said.steps.weights == said.steps.as_dict()["weights"] == weights
    assert f"weights of {weights}, as was asked for: another model" in few_bits.selected.reason
    assert f"weights of {weights}" in inspect_model(few_bits.model, engine=few_bits.options.runs_on).engine
    with pytest.raises(ValueError, match=f"weights is '{weights}': another model than the one that was loaded"):
        few_bits.certify(PROMPT, said)


@with_nncf
def test_whole_weights_stay_whole_beside_it(few_bits: LanguageModel) -> None:
    whole = LanguageModel(model_of(), byte_tokenizer(), engine="openvino", memory=2**23)
    assert whole.engine is not few_bits.engine
    assert "weights" not in whole.generate(PROMPT, max_new_tokens=3).steps.as_dict()
    keys = [fingerprint(model_of(), weights) for weights in ("", "int8", "int4")]
    assert len(set(keys)) == 3
    sizes = [(folder_of(key) / WEIGHTS).stat().st_size for key in (keys[0], fingerprint(model_of(), _of(few_bits)))]
    assert sizes[1] < 0.4 * sizes[0]


@with_nncf
def test_a_graph_that_is_not_the_models_is_refused_with_few_bits_too() -> None:
    model = model_of("llama", seed=8)
    keep(folder_of(fingerprint(model, "int8")), graph_of(model_of("llama")))
    with pytest.raises(
        ValueError, match=r"weights is 'int8', .*does not say what this model says; the prefill of a sh"
    ):
        select_engine(model, "openvino-int8")


@with_nncf
@pytest.mark.parametrize(
    ("family", "dtype"),
    [("mistral", torch.float32), ("gemma3", torch.float32), ("qwen3_moe", torch.float32), ("llama", torch.bfloat16)],
)
def test_other_families_and_half_precision_agree_with_themselves(family: str, dtype: torch.dtype) -> None:
    model = in_precision(tiny_model(family, seed=9), dtype)
    opened = load_engine(model, weights="int8", memory=2**22)
    assert opened.engine is not None, opened.reason


@with_nncf
def test_what_only_torch_does_is_refused_and_not_done_by_the_whole_weights(few_bits: LanguageModel) -> None:
    few_bits.model.train()
    with pytest.raises(ValueError, match="which OpenVINO alone has, and this request needs torch"):
        few_bits.generate(PROMPT, max_new_tokens=3)
    few_bits.model.eval()
    prefix = PrefixCache()
    assert few_bits.generate(PROMPT, prefix=prefix, max_new_tokens=9).tokens == few_bits.generate(
        PROMPT, max_new_tokens=9
    ).tokens  # fmt: skip


@without_nncf
def test_without_nncf_it_is_said_how_to_get_it() -> None:
    with pytest.raises(
        ValueError, match=r"weights is 'int8', .*: Weights .* need nncf: pip install 'antiphon\[int8\]'"
    ):
        LanguageModel(model_of(), byte_tokenizer(), engine="auto", weights="int8")
    with pytest.raises(ImportError, match=r"pip install 'antiphon\[int8\]'"):
        compression.compressed(graph_of(model_of()), "int8")


@pytest.mark.parametrize(
    "options", [{"engine": "torch"}, {"deterministic": True, "engine": "auto"}, {"compiled": True}]
)
def test_asked_for_beside_what_only_torch_has_it_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="weights is 'int8', which OpenVINO alone has; leave out what only torch does"):
        DecodingOptions(weights="int8", **options)


def test_weights_that_nobody_knows_are_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ValueError, match="There are no weights 'int2'; choose one of int8, int4"):
        LanguageModel.from_pretrained("no/such-model", weights="int2")


def _of(language_model: LanguageModel) -> str:
    return language_model.options.weights or ""
