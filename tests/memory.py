"""Memory over long prompts of many lengths: python -m tests.memory. Exits with 1 if it goes on growing.

The embedded model in float32 is asked for a few tokens after prompts of another length each. The resident memory is
shown every 20 requests; the second half may not add more than a few megabytes to what the first half has needed.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated

import torch
import typer

from antiphon.accel import LanguageModel
from antiphon.pipelines import resolve_model

EVERY = 20
LEAST, MOST = 32, 1024
"""How many tokens prompts have."""

GROWTH = 40
"""How many megabytes the second half may add."""


def resident() -> float:
    """Megabytes of this process that lie in memory."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def main(
    requests: Annotated[int, typer.Option(min=2, help="How many prompts.")] = 200,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = 1,
    engine: Annotated[str, typer.Option(help="Who runs the model: auto, torch or openvino.")] = "torch",
) -> None:
    """Ask SmolLM2 in float32, and show what memory it takes."""
    torch.set_num_threads(threads)
    model = LanguageModel.from_pretrained(resolve_model("smollm2"), dtype=torch.float32, engine=engine)
    chosen = random.Random(0)
    sizes = []
    for number in range(1, requests + 1):
        length = chosen.randint(LEAST, MOST)
        words = [
            chosen.choice(("honey", "the", "queen", "keeps", "of", "wax", "and", "hive", "7")) for _ in range(length)
        ]
        text = str(model.tokenizer.decode(model.tokenizer(" ".join(words))["input_ids"][:length]))
        model.generate(text, references=[text], max_new_tokens=4)
        sizes.append(resident())
        if number % EVERY == 0 or number == requests:
            typer.echo(f"{number} requests: {sizes[-1]:.0f} MB")
    grown = max(sizes) - max(sizes[: requests // 2])
    typer.echo(f"the second half adds {grown:.0f} MB to the most that the first half took")
    raise typer.Exit(code=0 if grown <= GROWTH else 1)


if __name__ == "__main__":
    typer.run(main)
