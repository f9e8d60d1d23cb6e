"""Prompts for BiTA's training: from a file, or from bundled templates."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

HELD_OUT = 4
"""Every n-th topic and task is held out for evaluation, with this n."""

_WRITTEN = Path(__file__).with_name("written.json")
_KINDS = (("about", "topics", 0.7), ("code", "tasks", 0.15))  # the other prompts are sums


def read_prompts(file: Path) -> list[str]:
    """Load prompts: the lines of a text file, or the ``prompt`` of each line of a .jsonl file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is not an object with a prompt, or there are no prompts.
    """
    if not file.is_file():
        raise FileNotFoundError(f"There is no file of prompts at {str(file)!r}.")
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    prompts = (
        [_prompt(file, number, line) for number, line in enumerate(lines, 1)] if file.suffix == ".jsonl" else lines
    )
    if not prompts:
        raise ValueError(f"{str(file)!r} has no prompts; give one a line, or JSON lines with a prompt each.")
    return prompts


def written_prompts(count: int, *, seed: int = 0, held_out: bool = False) -> list[str]:
    """Make different prompts from the bundled templates: prose, code and sums.

    Args:
        count: Number of prompts.
        seed: Random seed.
        held_out: Whether to use held-out topics and tasks, or the others.

    Raises:
        ValueError: the templates yield fewer prompts.
    """
    written = json.loads(_WRITTEN.read_text(encoding="utf-8"))
    random = Random(f"{seed} {held_out}")
    prompts: dict[str, None] = {}
    for _ in range(50 * count):
        if len(prompts) == count:
            break
        prompts[_draw(written, random, held_out)] = None
    if len(prompts) < count:
        raise ValueError(f"The templates make fewer than {count} prompts; ask for fewer, or give a file of your own.")
    return list(prompts)


def _draw(written: dict[str, list[str]], random: Random, held_out: bool) -> str:
    kind = random.random()
    for templates, subjects, share in _KINDS:
        kind -= share
        if kind < 0:
            own = [each for place, each in enumerate(written[subjects]) if (place % HELD_OUT == 0) == held_out]
            return random.choice(written[templates]).format(random.choice(own))
    numbers = random.randrange(held_out, 200, 2) + 12, random.randrange(2, 12)
    return random.choice(written["sums"]).format(*numbers)


def _prompt(file: Path, number: int, line: str) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, KeyError, TypeError):
        prompt = None
    if not isinstance(prompt, str) or not prompt:
        raise ValueError(f'Line {number} of {str(file)!r} is no object with a prompt; write {{"prompt": "..."}}.')
    return prompt
