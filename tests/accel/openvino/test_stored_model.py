"""Language models that are opened from the cache: the same texts, and torch only if something needs it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.accel import LanguageModel
from antiphon.accel.cache_folder import cache_folder
from antiphon.accel.engines.openvino import store
from antiphon.accel.stored_model import NotCachedError, StoredModel
from tests.accel.openvino.builders import in_precision
from tests.tiny import save_model, tiny_model

pytestmark = pytest.mark.slow

QUESTION = [{"role": "user", "content": "How do bees live? In hives."}]
SCRIPT = """
import json, sys
from antiphon.accel import LanguageModel
model = LanguageModel.from_pretrained(sys.argv[1], engine="openvino", memory=2**22)
texts = [model.generate(json.loads(sys.argv[2]), max_new_tokens=24, references=["In hives. In trees."]).text]
heavy = [name for name in ("torch", "transformers") if name in sys.modules]
texts.append(model.generate(json.loads(sys.argv[2]), max_new_tokens=8, temperature=0.8, seed=3).text)
print(json.dumps([texts, heavy, "torch" in sys.modules]))
"""

PARAMETERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "top_p": 0.9, "seed": 7},
    "penalty": {"presence_penalty": 1.5, "logit_bias": {65: 2.0}},
    "repetition": {"repetition_penalty": 1.3},
    "schema": {"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    "minimum": {"min_new_tokens": 20, "stop_token_ids": [97]},
    "no end": {"ignore_eos": True},
    "logprobs": {"logprobs": 2},
    "no drafts": {"drafter": "nothing"},
}


def save(folder: Path, seed: int = 0, dtype: torch.dtype = torch.bfloat16, **config: Any) -> Path:
    return save_model(in_precision(tiny_model(seed=seed, hidden_size=128, **config), dtype), folder)


def load(folder: Path, **options: Any) -> LanguageModel:
    given: dict[str, Any] = {"engine": "openvino", "memory": 2**22, "dtype": "float32"} | options
    return LanguageModel.from_pretrained(folder, **given)


def is_opened(language_model: LanguageModel) -> bool:
    return isinstance(language_model._source, StoredModel)


def text(language_model: LanguageModel, **parameters: Any) -> Any:
    completion = language_model.generate(QUESTION, **{"max_new_tokens": 24} | parameters)
    logprobs = [each.logprob for each in completion.logprobs or ()]
    return [completion.text, completion.usage.completion_tokens, completion.finish_reason, logprobs]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return a folder whose model was loaded before, and the model's answers then."""
    folder = save(tmp_path_factory.mktemp("stored") / "model")
    first = load(folder)
    assert not is_opened(first)
    return folder, {name: text(first, **parameters) for name, parameters in PARAMETERS.items()}


@pytest.mark.parametrize("name", PARAMETERS)
def test_an_opened_model_answers_as_the_loaded_one(known: tuple[Path, dict[str, Any]], name: str) -> None:
    opened = load(known[0])
    assert is_opened(opened)
    *expected, logprobs = known[1][name]
    assert text(opened, **PARAMETERS[name]) == [*expected, pytest.approx(logprobs, abs=1e-4)]
    source: Any = opened._source
    assert source.is_loaded == (name not in ("greedy", "no drafts")), "transformers' model is loaded if it is needed"
    engine = opened.engine
    assert text(opened) == known[1]["greedy"]
    assert opened.model.num_parameters() == opened.num_parameters
    assert opened.engine is engine, "the weights are not compiled again"
    assert text(opened) == known[1]["greedy"]


def test_a_new_process_needs_torch_for_sampling_only(known: tuple[Path, dict[str, Any]]) -> None:
    language_model = load(known[0], dtype="auto")
    expected = [
        language_model.generate(QUESTION, max_new_tokens=24, references=["In hives. In trees."]).text,
        language_model.generate(QUESTION, max_new_tokens=8, temperature=0.8, seed=3).text,
    ]
    command = [sys.executable, "-c", SCRIPT, str(known[0]), json.dumps(QUESTION)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert json.loads(done.stdout) == [expected, [], True]


def convert_before_an_update(folder: Path) -> None:
    """Change the record of a folder into one that an older version of the conversion wrote."""
    [record] = [each for each in (cache_folder() / "opened").iterdir() if str(folder) in each.read_text()]
    facts = json.loads(record.read_text())
    facts["identity"]["format"].remove(store.FORMAT)
    record.write_text(json.dumps(facts))


CHANGES: dict[str, Callable[[Path], object]] = {
    "weights": lambda folder: save(folder, seed=1),
    "template": lambda folder: (folder / "chat_template.jinja").write_text("{{ messages[0].content }}"),
    "generation": lambda folder: (folder / "generation_config.json").write_text('{"repetition_penalty": 1.2}'),
    "time": lambda folder: os.utime(folder / "config.json", (1, 1)),
    "graph": convert_before_an_update,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_checkpoint_is_loaded_anew(tmp_path: Path, change: str) -> None:
    folder = save(tmp_path / "model")
    text(load(folder))
    opened = load(folder)
    assert is_opened(opened)
    CHANGES[change](folder)
    assert not is_opened(load(folder))
    if change == "weights":
        with pytest.raises(ValueError, match="have changed since the model was opened; open it again"):
            _ = opened.model


def test_what_is_not_stored_is_not_opened(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", dtype=torch.float16)
    with pytest.raises(NotCachedError, match="cannot be opened from the cache"):
        load(folder, only_cached=True)
    text(load(folder))
    assert is_opened(load(folder, only_cached=True))
    assert not is_opened(load(folder, engine="auto")), "so small a model stays on torch"
    assert not is_opened(load(folder, device_map="cpu"))
    assert not is_opened(load(folder, attn_implementation="sdpa")), "other arguments are not recorded"
    adapted = save(tmp_path / "processors")
    (adapted / "generation_config.json").write_text('{"no_repeat_ngram_size": 2}')
    text(load(adapted))
    assert not is_opened(load(adapted)), "its greedy requests have processors of scores"
