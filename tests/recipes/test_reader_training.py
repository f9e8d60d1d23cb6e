"""Reader training: branches equal separate prompts, and interrupted runs resume exactly."""

from __future__ import annotations

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
from recipes.reader.train import LoraPlan, train_reader
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


@pytest.mark.exhaustive
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
