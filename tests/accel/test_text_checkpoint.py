"""Multimodal checkpoints: their text model is loaded without other parts, and decodes what the whole model does."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.accel.engines.torch.engine import traits_of
from antiphon.accel.engines.torch.text_checkpoint import find_text_part
from antiphon.accel.generate import generate
from antiphon.accel.language_model import LanguageModel
from antiphon.accel.memory_estimate import estimate_memory
from tests.accel.multimodal_checkpoints import (
    PLACEHOLDER,
    TEXT_SETTINGS,
    multimodal_config,
    save_gemma3n,
    save_multimodal,
)
from tests.table_part import part

pytestmark = pytest.mark.slow

MECHANISMS = ("gemma3", "gemma4", "mistral3", "minimax_m3_vl", "phi4_multimodal", "qwen2_5_vl", "qwen3_5", "step3p7")
"""A type for each way of loading: causal class, built class, registered conversion, features inside the text model."""
USUAL = ("gemma3", "phi4_multimodal", "qwen3_5")
ON_OPENVINO = [name for name in MECHANISMS if name != "step3p7"]
TYPES = [name if name in USUAL else pytest.param(name, marks=pytest.mark.exhaustive) for name in sorted(TEXT_SETTINGS)]
NEW_TOKENS = 24
PROMPT = torch.randint(1, 250, (1, 30), generator=torch.Generator().manual_seed(1))
decode: Any = generate
OPTIONS: dict[str, Any] = {
    "max_new_tokens": NEW_TOKENS,
    "do_sample": False,
    "eos_token_id": None,
    "suppress_tokens": [PLACEHOLDER],
}


@pytest.mark.parametrize("model_type", TYPES)
def test_the_text_model_decodes_what_the_whole_model_does(model_type: str, tmp_path: Path) -> None:
    whole = save_multimodal(model_type, tmp_path)
    expected = whole.generate(PROMPT, attention_mask=torch.ones_like(PROMPT), **OPTIONS)
    loaded = LanguageModel.from_pretrained(tmp_path, dtype=torch.float32, engine="torch")
    model: Any = loaded.model
    references = [expected[0, 30:].tolist()]
    assert torch.equal(decode(model, PROMPT, references=references, engine="torch", **OPTIONS), expected)
    with torch.no_grad():
        logits, wanted = model(PROMPT).logits, whole(PROMPT).logits
    assert float((logits - wanted).abs().max()) < 1e-5
    assert {name.split(".")[0] for name, _ in model.named_parameters()} <= {"model", "lm_head"}
    assert model.num_parameters() < whole.num_parameters() or model_type in ("mistral4",)


@pytest.mark.parametrize("model_type", part(ON_OPENVINO, ("gemma3", "qwen3_5")))
def test_the_text_model_runs_on_openvino(model_type: str, tmp_path: Path) -> None:
    whole = save_multimodal(model_type, tmp_path)
    expected = whole.generate(PROMPT, attention_mask=torch.ones_like(PROMPT), **OPTIONS)
    loaded = LanguageModel.from_pretrained(tmp_path, dtype=torch.float32, engine="openvino", memory=2**27)
    references = [expected[0, 30:].tolist()]
    found = decode(loaded.model, PROMPT, references=references, engine="openvino", **OPTIONS)
    assert torch.equal(found, expected)


def test_gemma_3n_is_loaded_without_the_package_of_its_image_encoder(tmp_path: Path) -> None:
    expected = save_gemma3n(tmp_path).generate(PROMPT, attention_mask=torch.ones_like(PROMPT), **OPTIONS)
    loaded = LanguageModel.from_pretrained(tmp_path, dtype=torch.float32, engine="torch")
    assert traits_of(loaded.model).level == "tree"
    assert torch.equal(decode(loaded.model, PROMPT, **OPTIONS), expected)


def test_the_settings_of_the_whole_model_hold_for_its_text_model() -> None:
    config = multimodal_config("gemma3")
    config.eos_token_id = [7, 9]
    config.tie_word_embeddings = False
    config.quantization_config = {"quant_method": "fp8"}
    part: Any = find_text_part(config)
    assert part.config.eos_token_id == [7, 9]
    assert part.config.tie_word_embeddings is False
    assert part.config.quantization_config == {"quant_method": "fp8"}
    assert config.get_text_config().eos_token_id != [7, 9], "the given configuration was changed"


def test_memory_is_estimated_without_the_other_parts(tmp_path: Path) -> None:
    whole = save_multimodal("qwen2_5_vl", tmp_path)
    estimate: Any = estimate_memory(tmp_path, engine="torch", precision="float32")
    text = LanguageModel.from_pretrained(tmp_path, dtype=torch.float32, engine="torch").model.num_parameters()
    assert estimate.parameters == text < whole.num_parameters()


def test_a_chat_template_that_only_the_processor_has_is_read(tmp_path: Path) -> None:
    save_multimodal("mistral3", tmp_path)
    template = "{% for message in messages %}[{{ message['content'] }}]{% endfor %}"
    (tmp_path / "chat_template.jinja").unlink()
    assert LanguageModel.from_pretrained(tmp_path, engine="torch").tokenizer.chat_template is None
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": template}), encoding="utf-8")
    loaded = LanguageModel.from_pretrained(tmp_path, engine="torch")
    assert loaded.tokenizer.chat_template == template
    assert "[Hi]" in loaded.tokenizer.decode(list(loaded.tokenize([{"role": "user", "content": "Hi"}]).tokens))
    image = [{"role": "user", "content": [{"type": "image", "url": "a.png"}]}]
    with pytest.raises(ValueError, match="takes text only"):
        loaded.stream(image)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own
@pytest.mark.parametrize(
    "name_of", [lambda name: name, lambda name: name.replace("model.layers", "model.language_model.layers")]
)
def test_an_adapter_in_the_folder_is_applied(name_of: Callable[[str], str], tmp_path: Path) -> None:
    """It names the modules of the text model, or those of the whole model that it was trained with."""
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file, save_file

    save_multimodal("gemma3", tmp_path)
    plain = LanguageModel.from_pretrained(tmp_path, dtype=torch.float32, engine="torch").model
    config = LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    with torch.random.fork_rng(devices=[]):
        trained: Any = get_peft_model(plain, config)
    trained.save_pretrained(tmp_path)
    adapter = tmp_path / "adapter_model.safetensors"
    save_file({name_of(key): weight for key, weight in load_file(adapter).items()}, adapter)
    loaded: Any = LanguageModel.from_pretrained(tmp_path, dtype=torch.float32, engine="torch").model
    with torch.no_grad():
        assert torch.allclose(loaded(PROMPT).logits, trained(PROMPT).logits, atol=1e-5)
