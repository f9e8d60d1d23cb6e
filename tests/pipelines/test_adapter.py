"""Adapters: merged once into a model that gives the same logits as peft, and refused if they do not fit the model."""

import json
import shutil
from pathlib import Path

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphon.accel import LanguageModel, RemoteLanguageModel, resolve_model
from antiphon.accel.files import is_intact, verified_folder
from antiphon.accel.models.bundled import CONFIG, GGUF_SHA256, WEIGHTS, smollm2
from antiphon.pipelines.extractive_model import ExtractiveModel, text_model
from antiphon.pipelines.prompt import prompt_format, reader_prompt
from tests.tiny import tiny_model

TOKENS = torch.arange(20)[None]
ROUNDING = 2**-8
"""Largest change of a weight by rounding to bfloat16, relative to the weight."""

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def write_adapter(folder: Path, *, base: str = "smollm2", hidden_size: int = 64) -> Path:
    """Write a random adapter for the tiny model in peft's format (two files)."""
    config = peft.LoraConfig(
        r=2,
        target_modules=["q_proj", "up_proj"],
        init_lora_weights=False,
        inference_mode=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = peft.get_peft_model(tiny_model(hidden_size=hidden_size), config)
    folder.mkdir()
    save_file(peft.get_peft_model_state_dict(model, save_embedding_layers=False), folder / WEIGHTS)
    config.base_model_name_or_path = base  # peft stored the tiny model's name
    config.save_pretrained(str(folder))
    return folder


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "mine")


@pytest.fixture
def cache(tmp_path: Path, tiny_folder: Path) -> Path:
    """A model cache that holds a tiny model in place of the converted base model."""
    cache = tmp_path / "cache"
    place = cache / "models" / f"smollm2-135m-instruct-{GGUF_SHA256[:8]}"

    def write(beside: Path) -> None:
        shutil.copytree(tiny_folder, beside, dirs_exist_ok=True)

    verified_folder(place, write)
    assert smollm2(cache=cache) == place
    return cache


def test_the_merged_model_says_what_the_adapted_one_says(adapter: Path, cache: Path, tiny_folder: Path) -> None:
    folder = resolve_model(str(adapter), cache=cache)
    merged = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    with torch.no_grad():
        plain = base(TOKENS).logits
        adapted = peft.PeftModel.from_pretrained(base, adapter)
        wanted, found = adapted(TOKENS).logits, merged(TOKENS).logits
    assert (wanted - found).abs().max() < 0.05 < (wanted - plain).abs().max()
    weights = adapted.merge_and_unload().state_dict()
    for name, weight in merged.state_dict().items():
        torch.testing.assert_close(weight, weights[name], rtol=ROUNDING, atol=0)


def test_the_merged_folder_is_whole_and_its_model_names_its_prompt(adapter: Path, cache: Path) -> None:
    folder = Path(resolve_model(str(adapter), cache=cache))
    assert is_intact(folder)
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    language_model = LanguageModel.from_pretrained(folder, device="cpu", dtype=torch.float32)
    assert language_model.model.config.prompt_format == "reader"
    assert prompt_format(language_model) is reader_prompt
    settings = language_model.model.generation_config
    assert settings is not None
    assert language_model.tokenizer.eos_token_id in settings.eos_token_id
    assert "<|im_start|>" in AutoTokenizer.from_pretrained(folder).chat_template


def test_every_name_of_a_model_is_loaded_and_shows_no_bar(
    adapter: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("antiphon.accel.models.bundled.cache_folder", lambda: cache)
    monkeypatch.setattr("transformers.utils.logging._tqdm_active", True)
    for name in ("smollm2", str(adapter)):
        models = LanguageModel.from_pretrained(name, device="cpu"), text_model(name, device="cpu")
        assert [model.name for model in models] == [name, name]
        assert models[0].generate("Bees", max_new_tokens=4).text == models[1].generate("Bees", max_new_tokens=4).text
    assert capfd.readouterr().err == ""
    assert transformers.utils.logging.is_progress_bar_enabled(), "the user's setting is restored"
    with pytest.raises(OSError, match=r"No language model could be loaded from 'smollm2'"):
        LanguageModel.from_pretrained(Path("smollm2"), local_files_only=True)  # a path is no name
    with pytest.raises(ValueError, match=r"^ollama/qwen3 is the address of a server; load it with RemoteLanguageModel"):
        LanguageModel.from_pretrained("ollama/qwen3")
    assert isinstance(text_model("ollama/qwen3"), RemoteLanguageModel)
    assert isinstance(text_model(None), ExtractiveModel)


def test_an_adapter_is_merged_once_and_a_changed_one_again(adapter: Path, cache: Path) -> None:
    said: list[str] = []

    def resolve() -> str:
        return resolve_model(str(adapter), cache=cache, progress=lambda what, done, total: said.append(what))

    first = resolve()
    assert set(said) == {"Merging the adapter into the language model, once"}
    said.clear()
    assert resolve() == first
    assert said == []
    weights = load_file(adapter / WEIGHTS)
    save_file({name: weight * 2 for name, weight in weights.items()}, adapter / WEIGHTS)
    assert resolve() != first
    assert said != []


def test_an_adapter_for_another_model_is_refused_by_name(tmp_path: Path, cache: Path) -> None:
    other = write_adapter(tmp_path / "other", base="Qwen/Qwen3-8B")
    with pytest.raises(ValueError, match="is for the model 'Qwen/Qwen3-8B'; only adapters for 'smollm2' are merged"):
        resolve_model(str(other), cache=cache)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        (WEIGHTS, None, "adapter_model.safetensors is missing"),
        (WEIGHTS, "cut off", "does not fit the model 'smollm2'"),
        (CONFIG, "{", "does not say which model the adapter is for"),
        (CONFIG, "[]", "does not say which model the adapter is for"),
    ],
)
def test_a_damaged_adapter_is_refused_with_its_name(
    name: str, content: str | None, complaint: str, adapter: Path, cache: Path
) -> None:
    if content is None:
        (adapter / name).unlink()
    else:
        (adapter / name).write_text(content)
    with pytest.raises(ValueError, match=complaint) as raised:
        resolve_model(str(adapter), cache=cache)
    assert str(adapter) in str(raised.value)
