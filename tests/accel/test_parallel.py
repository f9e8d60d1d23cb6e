"""Lookahead parallelism: all processes of a group see the same windows, pools and text."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from examples.lookahead_parallel import decode_parallel

from antiphon.accel.drafting.drafters.lookahead import Lookahead
from tests.families.table import tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

SETTINGS = {"narrow": (5, 4, 2), "wide": (7, 5, 7), "bigrams": (4, 2, 4), "one column": (1, 3, 3)}
PROMPT = [7, 3, 9, 4, 7, 3, 9, 1, 7, 3]
LENGTH = 30
SIZES = (1, 2, 3)


def told(model: Any, setting: tuple[int, int, int], group: Any = None) -> list[Any]:
    """Record the tokens, the window and the pool after every step."""
    lookahead = Lookahead(*setting, seed=3)
    steps: list[Any] = []
    for step in decode_parallel(model, PROMPT, lookahead, max_new_tokens=LENGTH, group=group):
        assert lookahead.window is not None
        levels = [list(level) for level in lookahead.window.levels]
        steps.append([list(step.tokens), levels, [list(ngram) for ngram in lookahead.pool]])
    return steps


def decode_in_groups(rank: int, folder: Path) -> None:
    """Decode in groups of one, two and three processes, and write the records of this process."""
    torch.set_num_threads(1)
    model: Any = tiny_model(seed=11)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=max(SIZES))
    groups = {size: dist.new_group(list(range(size))) for size in SIZES}
    seen = {
        f"{name} by {size}": told(model, setting, group)
        for size, group in groups.items()
        if rank < size
        for name, setting in SETTINGS.items()
    }
    (folder / f"{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the records of three processes that decoded in groups of one, two and three."""
    folder = tmp_path_factory.mktemp("processes")
    torch.multiprocessing.spawn(decode_in_groups, (folder,), nprocs=max(SIZES))  # type: ignore[attr-defined, no-untyped-call]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(max(SIZES))]


def plain(model: Any) -> list[int]:
    settings = {"max_new_tokens": LENGTH, "do_sample": False, "eos_token_id": None}
    text: list[int] = model.generate(torch.tensor([PROMPT]), **settings)[0].tolist()
    return text[len(PROMPT) :]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SETTINGS)
def test_every_process_sees_the_same_windows_pools_and_text(seen: list[dict[str, Any]], name: str, size: int) -> None:
    alone = told(tiny_model(seed=11), SETTINGS[name])
    for rank in range(size):
        assert seen[rank][f"{name} by {size}"] == alone, f"process {rank}"
    assert [token for step in alone for token in step[0]] == plain(tiny_model(seed=11))
    assert len(alone) < LENGTH, "something was drafted"


def test_an_end_token_inside_an_accepted_run_ends_the_text() -> None:
    model = tiny_model(seed=11)
    text = plain(model)
    for end in {text[9], text[20]}:
        steps = list(decode_parallel(model, PROMPT, Lookahead(5, 4, 2), max_new_tokens=LENGTH, ends=[end]))
        assert [token for step in steps for token in step.tokens] == text[: text.index(end) + 1]
        assert [step.finish for step in steps] == [None] * (len(steps) - 1) + ["stop"]


@pytest.mark.parametrize(
    ("model", "prompt", "message"),
    [("mamba2", PROMPT, "verifies trees, which Mamba2ForCausalLM cannot"), ("llama", [5], "1 tokens; at least 2")],
)
def test_unsupported_models_and_prompts_are_refused(model: str, prompt: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        next(decode_parallel(tiny_model(model), prompt, Lookahead(), max_new_tokens=3))
