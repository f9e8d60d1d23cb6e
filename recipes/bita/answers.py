"""A model's own greedy answers to prompts, on which BiTA is trained."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.accel.engines.torch.bita_weights import model_name
from antiphon.accel.files import write_file

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel

TOGETHER, SAVED = 16, 64
"""Number of prompts per batch, and of answers between two saves."""


@dataclass(frozen=True, slots=True)
class OwnAnswer:
    """A prompt and the model's greedy answer in token ids, including the end-of-sequence token."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def own_answers(
    language_model: LanguageModel,
    prompts: Sequence[str],
    file: Path,
    *,
    max_new_tokens: int = 192,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[OwnAnswer]:
    """Let the model answer prompts; return the answers, which are stored in ``file`` as JSON lines.

    Stored answers are not generated again, so an interrupted run resumes.

    Args:
        language_model: Model that answers.
        prompts: The prompts.
        file: File of answers.
        max_new_tokens: Maximum number of new tokens per answer.
        report: Called with done and total.

    Raises:
        ValueError: the file holds answers of another model, with another length, or to other prompts.
    """
    from antiphon.accel.text.messages import encode_prompt

    made = {"model": model_name(language_model.model), "max_new_tokens": max_new_tokens}
    answers = _read(file, made)
    if len(answers) > len(prompts):
        raise ValueError(
            f"{file} holds {len(answers)} answers, and there are {len(prompts)} prompts; give another file."
        )
    for number, (answer, given) in enumerate(zip(answers, prompts, strict=False), start=1):
        if list(answer.prompt) != encode_prompt(as_prompt(language_model, given), language_model.tokenizer):
            raise ValueError(f"Answer {number} in {file} is to another prompt than {given!r}; give another file.")
    file.parent.mkdir(parents=True, exist_ok=True)
    report(len(answers), len(prompts))
    for start in range(len(answers), len(prompts), SAVED):
        asked = [as_prompt(language_model, prompt) for prompt in prompts[start : start + SAVED]]
        said = language_model.generate_batch(asked, batch_size=TOGETHER, max_new_tokens=max_new_tokens)
        for prompt, completion in zip(asked, said, strict=True):
            answers.append(OwnAnswer(tuple(encode_prompt(prompt, language_model.tokenizer)), completion.tokens))
        _write(file, made, answers)
        report(len(answers), len(prompts))
    return answers


def as_prompt(language_model: LanguageModel, prompt: str) -> str | list[dict[str, str]]:
    """Return a prompt in the model's format: a chat message if it has a chat template, else the text."""
    return prompt if language_model.tokenizer.chat_template is None else [{"role": "user", "content": prompt}]


def _read(file: Path, made: dict[str, Any]) -> list[OwnAnswer]:
    if not file.is_file():
        return []
    first, *lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    if first != made:
        raise ValueError(f"{file} was made by {first}, and this is {made}; give another file.")
    return [OwnAnswer(tuple(line["prompt"]), tuple(line["answer"])) for line in lines]


def _write(file: Path, made: dict[str, Any], answers: Sequence[OwnAnswer]) -> None:
    lines = [made, *({"prompt": answer.prompt, "answer": answer.answer} for answer in answers)]
    write_file(file, "".join(f"{json.dumps(line)}\n" for line in lines).encode(), mode=None)
