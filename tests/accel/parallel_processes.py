"""The program of each process of a group: decode one text with 1, 2 and 3 processes, and record every step.

Started by torchrun: ``torchrun --nproc-per-node 3 tests/accel/parallel_processes.py FOLDER``.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from examples.lookahead_parallel import decode_parallel

from antiphon.accel.drafting.drafters.lookahead import Lookahead
from tests.tiny import tiny_model

SETTINGS = {"narrow": (5, 4, 2), "wide": (7, 5, 7), "bigrams": (4, 2, 4), "one column": (1, 3, 3)}
PROMPT = [7, 3, 9, 4, 7, 3, 9, 1, 7, 3]
LENGTH = 30


def told(model: Any, setting: tuple[int, int, int], group: Any = None) -> list[Any]:
    """Record the tokens, the window and the pool after every step."""
    lookahead = Lookahead(*setting, seed=3)
    steps: list[Any] = []
    for step in decode_parallel(model, PROMPT, lookahead, max_new_tokens=LENGTH, group=group):
        assert lookahead.window is not None
        levels = [list(level) for level in lookahead.window.levels]
        steps.append([list(step.tokens), levels, [list(ngram) for ngram in lookahead.pool]])
    return steps


def main(folder: Path) -> None:
    """Decode in groups of 1, 2, ... processes up to all of them, and write the records of this process."""
    torch.set_num_threads(1)
    model: Any = tiny_model(seed=11)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = {count: dist.new_group(list(range(count))) for count in range(1, size + 1)}
    seen = {
        f"{name} by {count}": told(model, setting, group)
        for count, group in groups.items()
        if rank < count
        for name, setting in SETTINGS.items()
    }
    (folder / f"{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
