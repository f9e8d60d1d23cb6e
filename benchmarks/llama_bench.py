"""Plain decoding speed of llama.cpp, measured by its own program `llama-bench`."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import which
from typing import Any

PROGRAM = "llama-bench"


def check_llama_bench(files: Sequence[Path]) -> None:
    """Run `llama-bench` with each file for some tokens, so that errors are known before other programs are measured.

    Args:
        files: Models in llama.cpp's format GGUF.

    Raises:
        FileNotFoundError: `llama-bench` is not on the path, or a file does not exist.
        RuntimeError: `llama-bench` cannot run a file.
    """
    if files and which(PROGRAM) is None:
        raise FileNotFoundError(
            f"There is no {PROGRAM} on the path, so llama.cpp cannot be measured. Install llama.cpp and put its "
            "programs on the PATH, or leave out --gguf."
        )
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"There is no file {file}; --gguf needs a model in llama.cpp's format GGUF.")
        _run(["-m", str(file), "-p", "16", "-n", "1", "-d", "16", "-r", "1", "-o", "json"])


def measure_llama_bench(
    files: Sequence[Path], *, prompt_tokens: int, new_tokens: int, threads: int, rounds: int
) -> list[dict[str, Any]]:
    """Return the speed of llama.cpp without drafts for each file.

    The prompt is processed in one run, and the new tokens are decoded in another after as many tokens of context,
    so that attention costs the same as in an answer to the prompt. Random token ids are used: the time does not
    depend on them.

    Args:
        files: Models in llama.cpp's format GGUF.
        prompt_tokens: Length of the prompt.
        new_tokens: Number of tokens to decode.
        threads: Number of processor threads.
        rounds: How often each run is repeated; the mean is returned.

    Raises:
        RuntimeError: `llama-bench` failed, or printed something else than its results.
    """
    common = ["-t", str(threads), "-r", str(rounds), "-o", "json"]
    figures = []
    for file in files:
        prefill = _run(["-m", str(file), "-p", str(prompt_tokens), "-n", "0", *common])
        decoding = _run(["-m", str(file), "-p", "0", "-n", str(new_tokens), "-d", str(prompt_tokens), *common])
        figures.append(
            {
                "file": file.name,
                "model": prefill["model_type"],
                "gb": round(prefill["model_size"] / 1e9, 2),
                "tokens_per_s": round(decoding["avg_ts"], 2),
                "first_token_ms": round(prefill["avg_ns"] / 1e6, 2),
                "prompt_tokens": prompt_tokens,
                "new_tokens": new_tokens,
                "build": prefill.get("build_commit"),
            }
        )
    return figures


def compare(llama_cpp: Sequence[Mapping[str, Any]], methods: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return llama.cpp's figures with the speed of our fastest method as a multiple of them: decoding, and end to end.

    Args:
        llama_cpp: What `measure_llama_bench` returns.
        methods: Figures of the methods, see `Speed.as_dict`. If none of them is ours, the multiples are None.
    """
    own = [method for method in methods if not method["is_baseline"]]
    if not own:
        return [dict(theirs) | {"speedup": None, "speedup_whole": None} for theirs in llama_cpp]
    compared = []
    for theirs in llama_cpp:
        decoding = max(method["tokens_per_s"] for method in own) / theirs["tokens_per_s"]
        whole = _seconds(theirs, theirs["new_tokens"]) / min(_seconds(each, theirs["new_tokens"]) for each in own)
        compared.append(dict(theirs) | {"speedup": round(decoding, 3), "speedup_whole": round(whole, 3)})
    return compared


def _seconds(figures: Mapping[str, Any], new_tokens: int) -> float:
    """Return the seconds from the start of the prefill to the last token."""
    return float(figures["first_token_ms"] / 1000 + (new_tokens - 1) / figures["tokens_per_s"])


def _run(arguments: Sequence[str]) -> dict[str, Any]:
    """Run `llama-bench` for one test, and return its result."""
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False)
    try:
        result: dict[str, Any] = json.loads(done.stdout)[-1]
    except (ValueError, LookupError):
        last = " ".join((done.stderr or done.stdout).strip().splitlines()[-1:]) or "it printed nothing"
        raise RuntimeError(
            f"{PROGRAM} {shlex.join(arguments)} ended with exit code {done.returncode} and no results: {last}. "
            "Try this command in a shell. It needs a version of April 2025 or later, which knows -d; another build of "
            "llama.cpp often repairs a crash (a negative exit code)."
        ) from None
    return result
