"""The benchmark page: how stored results are rendered, and that the page in the docs is up to date."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.page import COMMAND, read_results, render_page

DOCS = Path(__file__).parents[2] / "docs"
RAN = {
    "processor": "Abacus 3", "units": ["avx2"], "device": "cpu", "threads": 2, "torch": "2.13.0",
    "transformers": "5.23.0", "antiphon": "0.1.0",
}  # fmt: skip
COUNTED = {"samples": 9, "tokens_per_step": 4.042, "rows_per_step": 26.4}
REPLAY: dict[str, Any] = {
    "kind": "replay", "command": "python -m benchmarks.replay a.jsonl", "file": "a.jsonl", "task": None, "rows": 32,
    "drafters": [{"drafter": "blend", **COUNTED}, {"drafter": "trie", **COUNTED, "tokens_per_step": 3.66}],
}  # fmt: skip
METHOD: dict[str, Any] = {
    "method": "blend", "tokens_per_s": 31.25, "speedup": 3.012, "speedup_lookup": None, "speedup_whole": 1.5,
    "tokens_per_step": 4.0, "rows_per_step": 26.0, "ms_per_step": 40.1, "host_ms_per_step": 0.4,
    "draft_ms_per_step": 0.125, "prefill_seconds": 9.5, "identical": 0.975,
}  # fmt: skip
SPEED: dict[str, Any] = {
    "kind": "speed", "command": "python -m benchmarks.speed a.jsonl", "model": "qwen2.5-0.5b", "dtype": "bfloat16",
    **RAN, "file": "a.jsonl", "task": "rag", "samples": 9, "passages": 0, "shuffled": True, "replayed": True,
    "prompt_tokens": 903.6, "max_new_tokens": 128, "rows": "auto", "rounds": 3, "methods": [METHOD],
}  # fmt: skip
FLOOR: dict[str, Any] = {
    "kind": "floor", "command": "python -m benchmarks.bandwidth_floor", "model": "llama-2-7b", "dtype": "bfloat16",
    **RAN,
    "device": "NVIDIA H200", "weights_bytes": 13_210_000_000, "cache_bytes": 540_000_000, "copy_gb_per_s": 4000.4,
    "floor_ms": 3.437, "context": 1024, "rows": [1, 64], "ms": [4.0, 4.4], "ratio": [1.0, 1.1],
    "of_floor": [1.16, 1.28],
}  # fmt: skip
LLAMA_CPP = {
    "model": "qwen2 1B Q4_K - Medium", "gb": 0.98, "tokens_per_s": 11.54, "first_token_ms": 3300.0, "speedup": 1.884,
    "speedup_whole": 2.013,
}  # fmt: skip
START = {"program": "antiphon", "seconds": 8.9, "peak_gb": 6.1, "resident_gb": 3.72}
REFUSED = {"kind": "refused", "what": "Deeper trees", "measured": "0.2 % more tokens per step", "command": "make it"}


INDEX: dict[str, Any] = {
    "kind": "index", "command": "python -m benchmarks.indexing", **RAN, "vectors": 100_000, "dim": 1024, "queries": 400,
    "settings": [{
        "setting": "auto", "factory": "IVF1024,PQ128x4fsr", "lists": 1024, "probes": 256, "rescored": 6,
        "queries_per_second": 505.1, "milliseconds": 10.737, "build_seconds": 8.0, "bytes_per_vector": 103.6,
        "disk_bytes_per_vector": 2048.0, "peak_gib": 2.8, "recall@10": 0.991, "recall@100": 0.981,
    }],
}  # fmt: skip


def test_the_page_starts_with_a_summary_of_all_runs() -> None:
    on_openvino = {**METHOD, "method": "blend@openvino", "speedup": 6.5, "speedup_best": 1.18}
    page = render_page([REPLAY, {**SPEED, "methods": [METHOD, on_openvino]}, FLOOR])
    summary = page[: page.index("## Tokens per step in replays")]
    what = "qwen2.5-0.5b, bfloat16, a: rag, no passages, references of another question; Abacus 3"
    assert "## Summary\n" in summary
    assert f"| {what} | 3.01 |  |  | 4.00 |\n" in summary
    assert "references of another question, on OpenVINO; Abacus 3 | 6.50 |  | 1.18 | 4.00 |\n" in summary


def test_llama_cpp_and_starts_follow_the_methods() -> None:
    page = render_page([{**SPEED, "llama_cpp": [LLAMA_CPP], "starts": [START]}])
    assert "| blend | 31.25 |" in page
    assert "\n\nllama.cpp without drafts, by llama-bench:\n\n| model | GB | tokens/s |" in page
    assert "| qwen2 1B Q4_K - Medium | 0.98 | 11.54 | 3300.00 | 1.88 | 2.01 |\n" in page
    assert "\n\nEach program in a new process, after an earlier start:\n\n| program |" in page
    assert "| antiphon | 8.90 | 6.10 | 3.72 |\n" in page


def test_every_kind_of_result_is_rendered() -> None:
    page = render_page([REPLAY, {**REPLAY, "rows": 64, "task": "rag"}, SPEED, FLOOR, INDEX, REFUSED])
    assert "### 100,000 vectors of dimension 1,024\n\n400 queries; Abacus 3 (avx2).\n" in page
    assert "| auto | IVF1024,PQ128x4fsr | 0.98 | 0.99 | 505.10 | 10.74 | 8.00 | 103.60 | 2.80 |" in page
    assert (
        "At most 32 draft tokens per step:\n\n| drafter | a |\n|---|---|\n| blend | 4.04 (26) |\n| trie | 3.66 (26) |\n"
        in page
    )
    assert "At most 64 draft tokens per step:\n\n| drafter | a: rag |" in page
    assert "### qwen2.5-0.5b, bfloat16, a: rag, no passages, references of another question\n" in page
    assert "draft tokens: auto, rounds: 3. Abacus 3 (avx2), 2 threads; torch 2.13.0, transformers 5.23.0." in page
    assert "| blend | 31.25 | 3.01 |  | 1.50 | 4.00 | 26.00 | 40.10 | 0.40 | 0.12 | 9.50 | 0.97 |" in page
    assert "13.21 GB of weights and 0.54 GB of cache at 4000 GB/s: at least 3.44 ms; NVIDIA H200; torch" in page
    assert "| 64 | 4.40 | 1.10 | 1.28 |" in page
    assert "- **Deeper trees**: 0.2 % more tokens per step (`make it`)" in page
    assert all(f"    {result['command']}\n" in page for result in (REPLAY, SPEED, FLOOR))


def test_the_page_in_the_docs_is_up_to_date() -> None:
    results = read_results(sorted((DOCS / "results").glob("*.jsonl")))
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert page == render_page(results), f"out of date; run: {COMMAND}"
    assert {result["kind"] for result in results} >= {"replay"}
