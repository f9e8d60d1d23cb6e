"""Loading a model by folder or name: precision, device, and errors in one sentence."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertConfig, BertModel, LlamaForCausalLM, PreTrainedModel, T5Config, T5ForConditionalGeneration

from antiphon.accel.engines.selection import EngineName
from antiphon.accel.engines.torch.loading import choose_dtype
from antiphon.accel.language_model import LanguageModel
from antiphon.accel.processor import has_bfloat16_units
from antiphon.accel.text.completion import Stream
from tests.tiny import byte_tokenizer, save_model, tiny_model

PROMPT = "the passages that retrieval found are the drafts that decoding verifies"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello <3"}]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tiny_model().to(torch.bfloat16), tmp_path_factory.mktemp("checkpoint"))  # type: ignore[arg-type]


def test_a_saved_model_is_loaded_with_its_tokenizer(checkpoint: Path) -> None:
    loaded = LanguageModel.from_pretrained(
        checkpoint, device="cpu", dtype=torch.float32, drafter="copying", num_draft_tokens=8
    )
    assert loaded.name == str(checkpoint)
    assert loaded.options.num_draft_tokens == 8
    assert loaded.model.dtype == torch.float32
    assert not loaded.model.training
    assert isinstance(loaded.stream(MESSAGES), Stream)
    inputs = loaded.tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
    expected: Tensor = loaded.model.generate(**inputs, max_new_tokens=20)  # type: ignore[operator]
    assert loaded.generate(PROMPT, max_new_tokens=20).tokens == tuple(expected[0, inputs.input_ids.shape[1] :].tolist())


def test_threads_load_models_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers replaces methods of its classes while it loads; two loads at once would leave them replaced."""
    save_model(tiny_model(tie_word_embeddings=True), tmp_path)
    tie_weights, construct, building = PreTrainedModel.tie_weights, LlamaForCausalLM.__init__, list[str]()
    monkeypatch.setattr(PreTrainedModel, "tie_weights", tie_weights)  # restored even if it is replaced for good

    def slow_construct(self: Any, config: Any) -> None:
        building.append("start")
        time.sleep(0.1 if len(building) == 1 else 0.2)
        construct(self, config)
        building.append("end")

    monkeypatch.setattr(LlamaForCausalLM, "__init__", slow_construct)
    with ThreadPoolExecutor(2) as threads:
        loaded = list(threads.map(LanguageModel.from_pretrained, [tmp_path, tmp_path]))
    assert PreTrainedModel.tie_weights is tie_weights
    assert building == ["start", "end"] * 2
    assert all(each.model.lm_head.weight is each.model.model.embed_tokens.weight for each in loaded)


def test_half_precision_is_kept_on_a_cpu_only_if_it_has_bfloat16_units(checkpoint: Path) -> None:
    loaded = LanguageModel.from_pretrained(checkpoint, device="cpu")
    assert loaded.model.dtype == (torch.bfloat16 if has_bfloat16_units() else torch.float32)
    cpu = torch.device("cpu")
    assert choose_dtype(torch.float16, cpu) == loaded.model.dtype
    assert choose_dtype(torch.float32, cpu) == "auto"
    assert choose_dtype(torch.float16, torch.device("cuda")) == "auto"
    assert choose_dtype(torch.float16, "auto") == "auto"


def test_a_missing_or_corrupt_checkpoint_is_refused_with_its_name(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(
        OSError, match=r"^No language model could be loaded from '.*missing' .*Hugging Face Hub"
    ) as caught:
        LanguageModel.from_pretrained(missing)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="No language model could be loaded"):
        LanguageModel.from_pretrained(tmp_path)
    save_model(tiny_model(), tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match=f"could be loaded from '{tmp_path}'"):
        LanguageModel.from_pretrained(tmp_path)


SMALL: dict[str, Any] = {"vocab_size": 261, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.parametrize("engine", ["torch", "auto"])
def test_a_checkpoint_without_some_weights_is_refused(tmp_path: Path, engine: EngineName) -> None:
    """Transformers would fill them with random numbers."""
    save_model(tiny_model(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for name in ("lm_head.weight", "model.norm.weight"):
        del weights[name]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"has no weights named lm_head\.weight and 1 more: it is incomplete"):
        LanguageModel.from_pretrained(tmp_path, engine=engine)


def test_a_model_that_is_not_causal_is_refused(tmp_path: Path) -> None:
    encoder = BertModel(BertConfig(**SMALL, intermediate_size=16))
    encoder.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is a BertModel, not a causal language model"):
        LanguageModel.from_pretrained(tmp_path)
    pair: Any = T5ForConditionalGeneration(
        T5Config(vocab_size=261, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    )
    with pytest.raises(ValueError, match="not a causal language model"):
        LanguageModel(pair, byte_tokenizer())
    bare: Any = tiny_model().get_decoder()
    with pytest.raises(ValueError, match="not a causal language model"):
        LanguageModel(bare, byte_tokenizer())
