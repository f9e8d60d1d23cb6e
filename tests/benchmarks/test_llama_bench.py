"""`benchmarks.speed --gguf`: what llama-bench is asked to run, and how its results are compared."""

import json
import os
import sys
from pathlib import Path

import pytest

from benchmarks.llama_bench import check_llama_bench, measure_llama_bench

RESULT = {"model_type": "qwen2 1.5B Q4_K - Medium", "model_size": 980_000_000, "build_commit": "b1234"}
"""What llama-bench prints about the model."""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A llama-bench on the path that records its arguments and answers with the times of a slow machine."""
    script = tmp_path / "bin" / "llama-bench"
    script.parent.mkdir()
    times = {"-n": {"avg_ns": 2_500_000_000, "avg_ts": 200.0}, "-p": {"avg_ns": 5_000_000_000, "avg_ts": 12.5}}
    script.write_text(
        f"#!{sys.executable}\n"
        "import json, sys\n"
        f"with open({str(tmp_path / 'calls')!r}, 'a') as calls: print(json.dumps(sys.argv[1:]), file=calls)\n"
        "given = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "unused = '-n' if given['-n'] == '0' else '-p'\n"
        f"print(json.dumps([{RESULT!r} | {times!r}[unused]]))\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent), prepend=os.pathsep)
    return script


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "model-q4_k_m.gguf"
    file.write_bytes(b"GGUF")
    return file


def test_tokens_are_decoded_after_a_context_as_long_as_the_prompt(program: Path, model: Path) -> None:
    check_llama_bench([model])
    (figures,) = measure_llama_bench([model], prompt_tokens=520, new_tokens=61, threads=2, rounds=3)
    first, *calls = (json.loads(line) for line in (program.parents[1] / "calls").read_text().splitlines())
    assert first[:6] == ["-m", str(model), "-p", "16", "-n", "1"], "a short run finds errors early"
    prefill, decoding = (dict(zip(call[::2], call[1::2], strict=True)) for call in calls)
    assert prefill == {"-m": str(model), "-p": "520", "-n": "0", "-t": "2", "-r": "3", "-o": "json"}
    assert decoding == {"-m": str(model), "-p": "0", "-n": "61", "-d": "520", "-t": "2", "-r": "3", "-o": "json"}
    assert figures["tokens_per_s"] == 12.5
    assert figures["first_token_ms"] == 2500
    assert (figures["model"], figures["gb"], figures["file"]) == (RESULT["model_type"], 0.98, model.name)
