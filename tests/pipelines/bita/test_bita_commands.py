"""The bita commands: training writes a file that drafts; unusable prompts, answers and names are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from antiphon.accel import LanguageModel, choose_drafter
from antiphon.accel.drafting.drafters import BITA_FILE, BITA_PLACES, Bita, Blend
from antiphon.accel.engines.torch.bita_weights import BitaWeights, bita_weights_of
from antiphon.pipelines.cli import app
from antiphon.pipelines.models.drafters import SHIPPED, resolve_drafter
from recipes.bita import prompts
from recipes.bita.answers import SAVED, own_answers
from recipes.bita.prompts import HELD_OUT, read_prompts, written_prompts

pytestmark = pytest.mark.slow


def run(*words: Any) -> Any:
    result = CliRunner().invoke(app, ["bita", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result


def test_a_model_is_taught_and_examined_by_two_commands(tmp_path: Path, tiny_folder: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Who sings?\n\nWhat melts?\n", encoding="utf-8")
    options = ["--model", tiny_folder, "--data", prompts, "--max-new-tokens", 12]
    run("train", *options, "--out", tmp_path / "out", "--steps", 2, "--answers", 2, "--masks", 2, "--prefix", 4)
    learned = BitaWeights.load(tmp_path / "out" / "bita.safetensors")
    assert (learned.prefix, len(learned.masks), learned.model) == (4, 2, tiny_folder.name)
    answers = (tmp_path / "out" / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    assert [len(json.loads(line)["answer"]) for line in answers[1:]] == [12, 12]
    result = run("evaluate", tmp_path / "out" / "bita.safetensors", *options, "--json")
    figures = json.loads(result.stdout)
    assert figures.keys() == {"trained", "untrained"}
    assert figures["trained"]["tokens"] == 2 * 11
    assert figures["trained"]["tokens_per_step"].keys() == {"triangle", "rectangle", "chain"}
    table = run("evaluate", tmp_path / "out" / "bita.safetensors", *options).stdout
    assert "tokens per step, triangle" in table


def test_answers_that_are_there_are_not_made_again(tiny: LanguageModel, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    prompts = [f"Question {number}" for number in range(SAVED + 2)]
    done: list[int] = []
    first = own_answers(tiny, prompts[:2], file, max_new_tokens=4)
    both = own_answers(tiny, prompts, file, max_new_tokens=4, report=lambda count, _: done.append(count))
    assert both[:2] == first
    assert done == [2, SAVED + 2]
    assert all(len(answer.answer) == 4 or answer.answer[-1] == tiny.tokenizer.eos_token_id for answer in both)
    assert both[-1].answer == tiny.generate([{"role": "user", "content": prompts[-1]}], max_new_tokens=4).tokens
    with pytest.raises(ValueError, match="holds 66 answers, and there are 1 prompts"):
        own_answers(tiny, prompts[:1], file, max_new_tokens=4)
    with pytest.raises(ValueError, match=r"'max_new_tokens': 4}, and this is"):
        own_answers(tiny, prompts, file, max_new_tokens=5)
    with pytest.raises(ValueError, match=r"Answer 1 in .* is to another prompt"):
        own_answers(tiny, ["Another?", *prompts[1:]], file, max_new_tokens=4)


def test_written_prompts_are_the_same_for_a_seed_and_held_out_ones_are_about_other_things() -> None:
    taught, held_out = written_prompts(400, seed=1), written_prompts(60, seed=1, held_out=True)
    assert taught == written_prompts(400, seed=1) != written_prompts(400, seed=2)
    assert len(set(taught)) == 400
    assert not set(taught) & set(held_out)
    written = json.loads(Path(prompts.__file__).with_name("written.json").read_text(encoding="utf-8"))
    subjects = [*written["topics"][::HELD_OUT], *written["tasks"][::HELD_OUT]]
    assert not [prompt for prompt in taught for subject in subjects if f" {subject}" in prompt.rstrip(".?")]


def test_prompts_are_read_from_lines_and_from_json_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One\nTwo\n", encoding="utf-8")
    (tmp_path / "a.jsonl").write_text('{"prompt": "One\\ntwo", "id": 3}\n', encoding="utf-8")
    assert read_prompts(tmp_path / "a.txt") == ["One", "Two"]
    assert read_prompts(tmp_path / "a.jsonl") == ["One\ntwo"]
    for content, complaint in (("", "has no prompts"), ('{"text": "One"}\n', "Line 1 of .* no object with a prompt")):
        (tmp_path / "b.jsonl").write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=complaint):
            read_prompts(tmp_path / "b.jsonl")
    with pytest.raises(FileNotFoundError, match="no file of prompts"):
        read_prompts(tmp_path / "c.jsonl")


def test_bita_is_a_drafter_by_name_for_smollm2_and_for_nothing_else(tiny: LanguageModel) -> None:
    learned = BitaWeights.load(SHIPPED)
    assert SHIPPED.stat().st_size < 1_000_000
    assert learned.model.startswith("smollm2")
    for factory, kind in (
        (resolve_drafter("bita"), Bita),
        (resolve_drafter("blend", bita="smollm2", window=(5, 3, 5)), Blend),
    ):
        assert factory != "auto"
        drafter = factory()
        assert isinstance(drafter, kind)
        assert bita_weights_of(drafter) is not None
    with pytest.raises(ValueError, match="The BiTA weights for 'smollm2"):
        tiny.generate("Who?", drafter=resolve_drafter("bita"))
    with pytest.raises(ValueError, match="There is no drafter named 'byta'"):
        resolve_drafter("byta")


@pytest.mark.exhaustive
def test_the_shipped_file_is_smollm2s_and_its_drafts_hold(smollm2: LanguageModel) -> None:
    question = [{"role": "user", "content": "Explain how rainbows form in simple terms."}]
    plain = smollm2.generate(question, max_new_tokens=28, drafter="nothing")
    drafted = smollm2.generate(question, max_new_tokens=28, drafter=resolve_drafter("bita"), num_draft_tokens=51)
    assert drafted.tokens == plain.tokens
    assert len(drafted.tokens) / drafted.steps.steps > 1.25


def test_auto_finds_what_was_learned_of_smollm2_and_says_what_it_would_cost(
    smollm2: LanguageModel, smollm2_folder: Path
) -> None:
    assert (smollm2_folder / BITA_PLACES[0]).read_bytes() == SHIPPED.read_bytes()
    assert not (smollm2_folder / BITA_FILE).exists(), "beside the weights vLLM would take it for weights"
    assert "BiTA's full draft, 52 rows" in choose_drafter(smollm2.model).reason
    assert resolve_drafter("auto") == "auto"
    with pytest.raises(ValueError, match="leave out --bita"):
        resolve_drafter("auto", bita="smollm2")
