"""Reader training: branches equal separate prompts, interrupted runs resume exactly, and the loss falls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from antiphon.accel.testing.tiny import EOS, byte_tokenizer, tiny_model
from antiphon.accel.text.messages import encode_prompt
from antiphon.pipelines.prompt import reader_prompt
from antiphon.pipelines.quotes import Quote
from antiphon.retrieval import Passage
from recipes.reader.encoding import encode_example
from recipes.reader.example import Question, TrainingExample
from recipes.reader.train import LoraPlan, answer_loss, train_reader
from recipes.training_loop import StepReport

TOKENIZER = byte_tokenizer()
LESSON = TrainingExample(
    (Passage.at("a.txt", 0, "Bees dance."), Passage.at("b.txt", 0, "Wax melts.")),
    (
        Question("Who dances?", (Quote(1, "Bees dance."),)),
        Question("What melts", (Quote(2, "Wax melts."), Quote(1, "Bees dance."))),
        Question("Who sings?"),
    ),
)
PLAN = LoraPlan(steps=4, batch_size=1, learning_rate=1e-2, warm_up=1, rank=2, alpha=4, save_every=2)


def _train(out: Path, plan: LoraPlan, report: StepReport = lambda step, loss: None) -> None:
    """Train a tiny model on a single example."""
    train_reader(tiny_model(), TOKENIZER, lambda _: LESSON, out, plan, base="tiny", report=report)


def test_each_branch_has_the_logits_of_its_own_prompt() -> None:
    model = tiny_model()
    encoded = encode_example(LESSON, TOKENIZER)
    got = model(
        input_ids=encoded.tokens,
        position_ids=encoded.positions,
        attention_mask=encoded.mask,
        use_cache=False,
        logits_to_keep=encoded.sources,
    ).logits[0]
    at = 0
    for question in LESSON.questions:
        prompt = encode_prompt(reader_prompt(question.text, LESSON.passages).content, TOKENIZER)
        answer = [*TOKENIZER.encode(question.answer, add_special_tokens=False), EOS]
        plain = model(input_ids=torch.tensor([prompt + answer[:-1]])).logits[0, len(prompt) - 1 :]
        assert encoded.targets[at : at + len(answer)].tolist() == answer
        torch.testing.assert_close(got[at : at + len(answer)], plain, atol=2e-4, rtol=0)
        at += len(answer)
    assert at == len(encoded.targets)


def test_the_loss_covers_answer_tokens_only() -> None:
    model = tiny_model()
    encoded = encode_example(LESSON, TOKENIZER)
    logits = model(
        input_ids=encoded.tokens, position_ids=encoded.positions, attention_mask=encoded.mask, use_cache=False
    ).logits[0, encoded.sources]
    wanted = torch.nn.functional.cross_entropy(logits, encoded.targets)
    torch.testing.assert_close(answer_loss(model, encoded, torch.device("cpu")), wanted)


def test_training_lowers_the_loss_and_saves_a_peft_adapter(tmp_path: Path) -> None:
    losses: list[float] = []
    plan = LoraPlan(steps=12, batch_size=1, learning_rate=2e-2, warm_up=1, rank=4, alpha=8)
    train_reader(
        tiny_model(),
        TOKENIZER,
        lambda _: LESSON,
        tmp_path,
        plan,
        base="tiny",
        report=lambda _, loss: losses.append(loss),
    )
    assert losses[-1] < 0.9 * losses[0]
    config = json.loads((tmp_path / "adapter_config.json").read_text(encoding="utf-8"))
    assert (config["base_model_name_or_path"], config["r"], config["lora_alpha"]) == ("tiny", 4, 8)
    weights = load_file(tmp_path / "adapter_model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert any(weight.any() for name, weight in weights.items() if "lora_B" in name)
    assert sorted(path.name for path in tmp_path.glob("training*")) == []


def test_an_interrupted_run_ends_with_the_weights_of_an_uninterrupted_one(tmp_path: Path) -> None:
    _train(tmp_path / "whole", PLAN)
    seen: list[int] = []

    def cut(step: int, loss: float) -> None:
        seen.append(step)
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _train(tmp_path / "cut", PLAN, cut)
    train_reader(
        tiny_model(),
        TOKENIZER,
        lambda _: LESSON,
        tmp_path / "cut",
        PLAN,
        base="tiny",
        report=lambda s, _: seen.append(s),
    )
    assert seen == [1, 2, 3, 3, 4]
    whole, again = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("whole", "cut"))
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_a_run_can_start_from_an_adapter_and_continues_from_its_weights(tmp_path: Path) -> None:
    losses: list[float] = []

    def train_weights(out: str, steps: int, start: Path | None = None) -> Path:
        plan = LoraPlan(steps=steps, batch_size=1, learning_rate=2e-2, warm_up=1, decay=0, rank=4, alpha=8)
        return train_reader(
            tiny_model(), TOKENIZER, lambda _: LESSON, tmp_path / out, plan, base="smollm2", start=start,
            report=lambda _, loss: losses.append(loss),
        )  # fmt: skip

    first = train_weights("first", 12)
    train_weights("second", 2, first)
    assert losses[12] < 0.9 * losses[0]  # the second run starts from the first run's weights
    (first / "adapter_model.safetensors").write_bytes(b"broken")
    with pytest.raises(ValueError, match="does not fit"):
        train_weights("third", 2, first)


def test_a_checkpoint_of_another_plan_is_refused(tmp_path: Path) -> None:
    def cut(step: int, loss: float) -> None:
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _train(tmp_path, PLAN, cut)
    other = LoraPlan(steps=9, batch_size=1)
    with pytest.raises(ValueError, match="another plan"):
        _train(tmp_path, other)


def test_the_learning_rate_warms_up_and_decays() -> None:
    plan = LoraPlan(steps=100, warm_up=10, decay=0.4)
    rates = [plan.rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert set(rates[9:61]) == {1.0}
    assert rates[60:] == sorted(rates[60:], reverse=True)
    assert rates[-1] == pytest.approx(1 / 40)


def test_a_plan_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="steps is 0"):
        LoraPlan(steps=0)


def test_a_tokenizer_without_an_end_of_sequence_is_refused() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="end-of-sequence"):
        encode_example(LESSON, tokenizer)
