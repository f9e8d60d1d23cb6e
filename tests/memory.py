"""Memory over many prompts of different lengths: python -m tests.memory. Exits with 1 if memory keeps growing.

The bundled model in float32 generates a few tokens after each prompt, the longest prompt first. Memory in use may not
grow in the second half. Resident memory may grow a little, because the C library's heap is fragmented by tensors of
different sizes and takes new memory when no free block is large enough.
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
"""A line is printed after this number of requests."""

MIN_TOKENS, MAX_TOKENS = 32, 1024
"""Lengths of the prompts."""

MAX_GROWTH = 40
"""Megabytes by which the maximum memory in use may grow in the second half."""

MALLINFO2 = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip
"""The fields of `struct mallinfo2` in their order; arena, hblkhd, uordblks and fordblks are in bytes."""

MAX_RESIDENT_GROWTH = 0.1
"""Share by which the maximum resident memory may grow in the second half."""


class Heap(ctypes.Structure):
    """Statistics of glibc's heap: `struct mallinfo2`."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in MALLINFO2)


def in_use() -> float:
    """Return the megabytes of the C library's heap that are in use.

    Raises:
        AttributeError: The C library is not glibc 2.33 or newer.
    """
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Heap
    heap = mallinfo()
    return float(heap.uordblks + heap.hblkhd) / 2**20


def resident() -> float:
    """Return the resident memory of this process in megabytes."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def main(
    requests: Annotated[int, typer.Option(min=2, help="Number of prompts.")] = 200,
    threads: Annotated[int, typer.Option(min=1, help="Number of threads of torch.")] = 1,
    engine: Annotated[str, typer.Option(help="Engine: auto, torch or openvino.")] = "torch",
) -> None:
    """Generate with SmolLM2 in float32 and print its memory."""
    torch.set_num_threads(threads)
    model = LanguageModel.from_pretrained(resolve_model("smollm2"), dtype=torch.float32, engine=engine)
    generator = random.Random(0)
    used: list[float] = []
    sizes: list[float] = []
    for number in range(1, requests + 1):
        length = generator.randint(MIN_TOKENS, MAX_TOKENS) if number > 1 else MAX_TOKENS
        words = [
            generator.choice(("honey", "the", "queen", "keeps", "of", "wax", "and", "hive", "7")) for _ in range(length)
        ]
        text = str(model.tokenizer.decode(model.tokenizer(" ".join(words))["input_ids"][:length]))
        model.generate(text, references=[text], max_new_tokens=4)
        used.append(in_use())
        sizes.append(resident())
        if number % EVERY == 0 or number == requests:
            typer.echo(f"{number} requests: {max(used[-EVERY:]):.0f} MB in use at most, {sizes[-1]:.0f} MB resident")
    half = requests // 2
    grown, further = max(used[half:]) - max(used[:half]), max(sizes[half:]) / max(sizes[:half]) - 1
    typer.echo(f"maximum in the second half compared with the first: {grown:+.0f} MB in use, {further:+.1%} resident")
    raise typer.Exit(code=0 if grown <= MAX_GROWTH and further <= MAX_RESIDENT_GROWTH else 1)


if __name__ == "__main__":
    typer.run(main)
