"""Memory over long prompts of many lengths: python -m tests.memory. Exits with 1 if it goes on growing.

The embedded model in float32 is asked for a few tokens after prompts of another length each, the longest first. What is
in use may not grow in the second half. What is resident may, by a little: the C library's heap keeps holes between
tensors of other sizes, and takes new memory now and then where no hole is large enough.
"""

from __future__ import annotations

import ctypes
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
"""How many megabytes the second half may add to what was in use at most."""

MALLINFO2 = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip
"""The numbers of `struct mallinfo2`, in their order; in bytes are arena, hblkhd, uordblks and fordblks."""

HOLES = 0.1
"""By which share of what was resident at most the second half may exceed it."""


class Heap(ctypes.Structure):
    """What glibc says of its heap: `struct mallinfo2`."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in MALLINFO2)


def in_use() -> float:
    """Megabytes of the C library's heap that somebody holds.

    Raises:
        AttributeError: the C library is not glibc, or older than 2.33.
    """
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = Heap
    heap = ask()
    return float(heap.uordblks + heap.hblkhd) / 2**20


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
    used: list[float] = []
    sizes: list[float] = []
    for number in range(1, requests + 1):
        length = chosen.randint(LEAST, MOST) if number > 1 else MOST
        words = [
            chosen.choice(("honey", "the", "queen", "keeps", "of", "wax", "and", "hive", "7")) for _ in range(length)
        ]
        text = str(model.tokenizer.decode(model.tokenizer(" ".join(words))["input_ids"][:length]))
        model.generate(text, references=[text], max_new_tokens=4)
        used.append(in_use())
        sizes.append(resident())
        if number % EVERY == 0 or number == requests:
            typer.echo(f"{number} requests: {max(used[-EVERY:]):.0f} MB in use at most, {sizes[-1]:.0f} MB resident")
    half = requests // 2
    grown, further = max(used[half:]) - max(used[:half]), max(sizes[half:]) / max(sizes[:half]) - 1
    typer.echo(f"the second half uses {grown:+.0f} MB of what the first did at most; resident are {further:+.1%}")
    raise typer.Exit(code=0 if grown <= GROWTH and further <= HOLES else 1)


if __name__ == "__main__":
    typer.run(main)
