"""Lookahead parallelism: all processes of a group see the same windows, pools and text."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from examples.lookahead_parallel import decode_parallel

from antiphon.accel.drafting.drafters.lookahead import Lookahead
from tests.accel.parallel_processes import LENGTH, PROMPT, SETTINGS, told
from tests.families.table import tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

SIZES = (1, 2, 3)


def plain(model: Any, **options: Any) -> list[int]:
    settings = {"max_new_tokens": LENGTH, "do_sample": False, "eos_token_id": None} | options
    text: list[int] = model.generate(torch.tensor([PROMPT]), **settings)[0].tolist()
    return text[len(PROMPT) :]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the records of three processes that decoded in groups of one, two and three."""
    folder = tmp_path_factory.mktemp("processes")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(max(SIZES))]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    script = str(Path(__file__).with_name("parallel_processes.py"))
    result = subprocess.run([*command, script, str(folder)], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(max(SIZES))]


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
