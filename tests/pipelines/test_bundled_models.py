"""The bundled language models: each is converted once, completely and correctly; unknown names raise a clear error."""

from itertools import chain
from pathlib import Path

import pytest
import torch

from antiphon.accel import LanguageModel, resolve_model
from antiphon.accel.files import is_intact
from antiphon.pipelines.models.drafters import resolve_drafter
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


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("smolm2", "There is no model 'smolm2'; did you mean 'smollm2'?"),
        ("SmolLM2", "did you mean 'smollm2'?"),
        ("raeder", "did you mean 'reader'?"),
        (
            "./nowhere",
            "There is no model folder './nowhere'; a model is 'reader' or 'smollm2', a folder, a GGUF file, a hub name",
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


@pytest.mark.exhaustive
def test_the_shipped_file_is_smollm2s_and_its_drafts_hold(smollm2: LanguageModel) -> None:
    question = [{"role": "user", "content": "Explain how rainbows form in simple terms."}]
    plain = smollm2.generate(question, max_new_tokens=28, drafter="nothing")
    drafted = smollm2.generate(question, max_new_tokens=28, drafter=resolve_drafter("bita"), num_draft_tokens=51)
    assert drafted.tokens == plain.tokens
    assert len(drafted.tokens) / drafted.steps.steps > 1.25
