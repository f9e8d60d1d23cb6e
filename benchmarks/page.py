"""Renders docs/benchmarks.md from the stored results in docs/results.

python -m benchmarks.page docs/results/*.jsonl > docs/benchmarks.md
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.pipelines.benchmark.facts import device_name, machine_caption, run_title, sample_set
from benchmarks.program import program

COMMAND = "python -m benchmarks.page docs/results/*.jsonl > docs/benchmarks.md"
PUBLISHED = Path(__file__).parent / "published.json"
KINDS = ("replay", "speed", "drafters", "floor", "rows", "index", "refused")

Result = Mapping[str, Any]


def read_results(paths: Sequence[Path]) -> list[Result]:
    """Read the results of JSON Lines files in order.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is not a result; the message has its number.
    """
    results: list[Result] = []
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"There is no file {path}; give files of lines that benchmarks print with --json.")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.strip():
                results.append(_parse(line, f"{path}, line {number}"))
    return results


def render_page(results: Sequence[Result]) -> str:
    """Return the whole page in Markdown."""
    of = {kind: [result for result in results if result["kind"] == kind] for kind in KINDS}
    parts = [HEAD.format(command=COMMAND)]
    parts += [_summary(of["speed"])] if of["speed"] else []
    parts += [_replays(of["replay"])] if of["replay"] else []
    parts += [SPEED_HEAD, *map(_speed, of["speed"])] if of["speed"] else []
    parts += [DRAFTERS_HEAD, *map(_drafters, of["drafters"])] if of["drafters"] else []
    parts += [FLOOR_HEAD, *map(_floor, of["floor"])] if of["floor"] else []
    parts += [ROWS_HEAD, *map(_equal_rows, of["rows"])] if of["rows"] else []
    parts += [INDEX_HEAD, *map(_index, of["index"])] if of["index"] else []
    parts += [_published()]
    parts += [REFUSED_HEAD + "\n".join(map(_refused, of["refused"])) + "\n"] if of["refused"] else []
    return "\n".join(parts)


HEAD = """\
# Benchmarks

How fast Antiphon decodes, compared with greedy decoding and with prompt lookup, on several processors. Measure your own
machine with:

    antiphon bench speed --model smollm2 --passages 5

In a checkout, `python -m benchmarks.speed --shape qwen2.5-1.5b` compares the programs at the size of a larger model.
This page is generated from stored results in a checkout, and a test checks that it is up to date:

    {command}

Below each result is the command that prints it in a checkout. The sample files `python-docs` and `genres` and the
bundled models ship with the package. The other sample files hold recorded answers of larger models and do not ship; use
your own recorded answers in the same format. Results on another machine will differ. Ratios transfer better than times,
and ratios between drafting methods transfer better than ratios to greedy decoding.
"""

SUMMARY_HEAD = """\
## Summary

The default drafter, `blend`, in every run below: its speed-up over greedy decoding of transformers (*× greedy*), over
the faster of transformers' two prompt lookups (*× lookup*), and over the fastest of all baselines that ran, such as
OpenVINO GenAI's prompt lookup (*× best baseline*). *Tokens per step* is the number of tokens that one forward pass
emits. The gain depends on how much an answer repeats: it is largest for quotes, smallest if there is nothing to copy.
"""

REPLAY_HEAD = """\
## Tokens per step in replays

Recorded answers, replayed without a model: tokens per forward pass on average, counting the prefill as one, and in
brackets the draft tokens per forward pass. These figures do not depend on a clock. Drafters that learn from the model's
logits get none here, so they show their effect only with a real model.
"""

SPEED_HEAD = """\
## Speed

All methods decode the same prompts in turn (A B C A B C) through their programs' public interfaces. Times are medians
over the rounds, summed over the prompts.

- *× greedy*: speed-up of the decoding phase over `model.generate` of transformers.
- *× lookup*: over the faster of its two prompt lookups (10 tokens with the defaults, and n=3).
- *× best baseline*: over the fastest of all other programs that ran.
- *end to end*: the same including prefill.
- *first token*: mean time to the first token.
- *host*: time of a step outside the model's forward pass.
- *identical*: share of outputs that equal greedy decoding's, token for token.

Drafting work before the first token, such as indexing references, counts as decoding. A first draft of prompt lookup,
which is verified in the prefill's forward pass, is free. *Replayed* means that the model's compute is real and its
outputs are forced to be the recorded answer, so all methods emit the same tokens; a run that emitted others would have
been refused. Before a replay is measured, OpenVINO GenAI and our OpenVINO engine decode the answer once, and the other
methods a few of its tokens. *nothing* is our engine without drafts: its gain on a CPU comes from attention and weights
in the memory layout that kernels read, and the further gain of other drafters comes from drafts.
"""

FLOOR_HEAD = """\
## The bandwidth floor

A step reads all weights and the KV cache once, so it cannot be faster than the device copies that many bytes. *Plain
steps* is the cost of a forward pass with this number of rows relative to one row.
"""

REFUSED_HEAD = """\
## What did not help

Measured and not adopted:

"""


DEFAULTS = {"blend": "", "blend@openvino": ", on OpenVINO"}


def _summary(results: Sequence[Result]) -> str:
    """Return a table with one row per run of the default drafter."""
    lines = [_header("model, samples; processor", "× greedy", "× lookup", "× best baseline", "tokens per step")]
    for result in results:
        for each in result["methods"]:
            if each["method"] in DEFAULTS:
                figures = (_cell(each.get(f"speedup{key}")) for key in ("", "_lookup", "_best"))
                what = f"{_speed_title(result)}{DEFAULTS[each['method']]}; {device_name(result)}"
                lines.append(_row(what, *figures, _cell(each["tokens_per_step"])))
    return "\n".join([SUMMARY_HEAD, *lines, ""])


def _replays(results: Sequence[Result]) -> str:
    """Return a table per maximum number of draft tokens, with drafters as rows and sample files as columns."""
    parts = [REPLAY_HEAD]
    for rows in sorted({result["rows"] for result in results}):
        parts.append(_replay_table(rows, [result for result in results if result["rows"] == rows]))
    return "\n".join(parts)


def _replay_table(rows: int, results: Sequence[Result]) -> str:
    sets = {sample_set(result): {each["drafter"]: each for each in result["drafters"]} for result in results}
    drafters = dict.fromkeys(name for figures in sets.values() for name in figures)
    lines = [_row(name, *(_count(figures.get(name)) for figures in sets.values())) for name in drafters]
    answers = _row("answers", *(next(iter(figures.values()))["samples"] for figures in sets.values()))
    commands = "\n".join(f"    {result['command']}" for result in results)
    return (
        f"At most {rows} draft tokens per step:\n\n{_header('drafter', *sets)}\n"
        + "\n".join([*lines, answers])
        + f"\n\n{commands}\n"
    )


def _count(figures: Result | None) -> str:
    return f"{figures['tokens_per_step']:.2f} ({figures['rows_per_step']:.0f})" if figures else ""


def _speed(result: Result) -> str:
    """Return a section about one run with one row per method."""
    how = "replayed" if result["replayed"] else "the model's own outputs"
    keys = [key for key in SPEED if key not in OPTIONAL or all(key in each for each in result["methods"])]
    lines = [
        _header("method", *(SPEED[key] for key in keys)),
        *(_row(each["method"], *(_cell(each[key]) for key in keys)) for each in result["methods"]),
    ]
    return "\n".join(
        [
            f"### {_speed_title(result)}\n",
            f"{result['samples']} prompts, {how}; {result['prompt_tokens']:.0f} prompt tokens on average, at most "
            f"{result['max_new_tokens']} new tokens, draft tokens: {result['rows']}, rounds: {result['rounds']}. "
            f"{machine_caption(result)}.\n",
            *lines,
            *_further_table("llama.cpp without drafts, by llama-bench:", LLAMA_CPP, result.get("llama_cpp", ())),
            *_further_table(STARTS_HEAD, STARTS, result.get("starts", ())),
            f"\n    {result['command']}\n",
        ]
    )


def _speed_title(result: Result) -> str:
    return f"{run_title(result)}{', references of another question' if result.get('shuffled') else ''}"


def _further_table(title: str, columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table below that of the methods, or nothing if there are no rows."""
    cells = [_row(*(_cell(each[key]) for key in columns)) for each in rows]
    return [f"\n{title}\n", _header(*columns.values()), *cells] if rows else []


STARTS_HEAD = "Each program runs in a new process, after one start that is not counted:"

STARTS = {
    "program": "program",
    "seconds": "start to first token, s",
    "peak_gb": "peak, GB",
    "resident_gb": "afterwards without mapped files, GB",
}

LLAMA_CPP = {
    "model": "model",
    "gb": "GB",
    "tokens_per_s": "tokens/s",
    "first_token_ms": "first token, ms",
    "speedup": "× our fastest method",
    "speedup_whole": "end to end",
}

SPEED = {
    "tokens_per_s": "tokens/s",
    "speedup": "× greedy",
    "speedup_lookup": "× lookup",
    "speedup_whole": "end to end",
    "speedup_best": "× best baseline",
    "speedup_best_whole": "end to end",
    "first_token_ms": "first token, ms",
    "tokens_per_step": "tokens per step",
    "rows_per_step": "rows per step",
    "ms_per_step": "ms per step",
    "host_ms_per_step": "host",
    "draft_ms_per_step": "drafting",
    "prefill_seconds": "prefills, s",
    "identical": "identical",
}

OPTIONAL = ("speedup_best", "speedup_best_whole", "first_token_ms")
"""Columns that stored results of earlier versions do not have."""


def _drafters(result: Result) -> str:
    """Return a section about one model with one row per drafter and one column per kind of prompt."""
    sets = result["sets"]
    rows = []
    for each in zip(*sets.values(), strict=True):
        cells = (f"{one['tokens_per_step']:.2f} ({one['rows_per_step']:.0f}), {one['speedup']:.2f} ×" for one in each)
        rows.append(_row(each[0]["method"], *cells))
    same = all(one["identical"] == 1 for found in sets.values() for one in found)
    texts = ", ".join(f"{count} prompts of {kind}" for kind, count in result["samples"].items())
    kept = "all outputs identical to greedy decoding" if same else "not all outputs identical to greedy decoding"
    return "\n".join(
        [
            f"### {result['model']}, {result['dtype']}, draft tokens: {result['rows']}\n",
            f"{texts}; questions and summaries over {result['passages']} passages of "
            f"{result['file'].removesuffix('.jsonl')}, at most {result['max_new_tokens']} new tokens, "
            f"rounds: {result['rounds']}; {kept}. {machine_caption(result)}.\n",
            _header("drafter", *sets),
            *rows,
            f"\n    {result['command']}\n",
        ]
    )


DRAFTERS_HEAD = """\
## All drafters, alone and combined

Tokens per step, in brackets draft tokens per step (including mask tokens and lookahead windows), and the speed-up of
the decoding phase over `model.generate` of transformers. 32 draft tokens in every step cost a CPU more than they gain;
*auto*, the default, lets the cost model choose their number. Chat has nothing to copy from except its own output.
"""


def _index(result: Result) -> str:
    """Return a section about one set of vectors with one row per index setting."""
    return "\n".join(
        [
            f"### {result['vectors']:,} vectors of dimension {result['dim']:,}\n",
            f"{result['queries']:,} queries; {result['processor']} ({', '.join(result['units'])}).\n",
            _header("setting", *INDEX.values()),
            *(_row(each["setting"], *(_cell(each[key]) for key in INDEX)) for each in result["settings"]),
            f"\n    {result['command']}\n",
        ]
    )


INDEX = {
    "factory": "index",
    "recall@100": "recall@100",
    "recall@10": "recall@10",
    "queries_per_second": "queries per second",
    "milliseconds": "latency, ms",
    "build_seconds": "build, s",
    "bytes_per_vector": "bytes per vector",
    "peak_gib": "peak so far, GiB",
}

INDEX_HEAD = """\
## Vector indexes

Recall against exact search, speed and memory. *Bytes per vector* is memory; settings with rescoring also read
half-precision vectors from a memory map. With `k * n`, a search for k passages rescores n * k candidates. *paper* is
the paper's setting (IVF4096, PQ64, 16 probes), with fewer lists if there are too few vectors to train that many.
"""


def _floor(result: Result) -> str:
    rows = zip(result["rows"], result["ms"], result["ratio"], result["of_floor"], strict=True)
    return "\n".join(
        [
            f"### {result['model']}, {result['dtype']}, after {result['context']:,} tokens\n",
            f"{result['weights_bytes'] / 1e9:.2f} GB of weights and {result['cache_bytes'] / 1e9:.2f} GB of cache at "
            f"{result['copy_gb_per_s']:.0f} GB/s: at least {result['floor_ms']:.2f} ms; {machine_caption(result)}.\n",
            _header("rows", "ms", "plain steps", "floors"),
            *(_row(count, f"{ms:.2f}", f"{ratio:.2f}", f"{floors:.2f}") for count, ms, ratio, floors in rows),
            f"\n    {result['command']}\n",
        ]
    )


def _equal_rows(result: Result) -> str:
    """Return a section about one model with one row per context and number of rows."""
    ours, theirs = result["nodes"]
    lines = (_row(each["context"], each["rows"], *(_cell(each[key]) for key in ROWS)) for each in result["passes"])
    return "\n".join(
        [
            f"### {result['model']}, {result['dtype']}\n",
            f"Rounds: {result['rounds']}; {ours} nodes, GenAI's {theirs}. {machine_caption(result)}.\n",
            _header("context", "rows", *ROWS.values()),
            *lines,
            f"\n    {result['command']}\n",
        ]
    )


ROWS = {
    "ms": "ms",
    "genai_ms": "GenAI's, ms",
    "ratio": "ratio",
    "cpu_ratio": "of processor time",
    "change_ms": "another number of rows, ms more",
    "genai_change_ms": "GenAI's, ms more",
}

ROWS_HEAD = """\
## Forward passes of as many rows

Our graph on OpenVINO, and the graph that OpenVINO GenAI makes of the same weights, in turn, with the most likely token
of each row. *Another number of rows*: how much longer a pass takes if the pass before it had another number.
"""


def _published() -> str:
    columns = ("method", "model", "hardware", "texts", "speedup", "tokens_per_step", "source")
    figures = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    lines = [_row(*(_cell(each.get(column)) for column in columns)) for each in figures]
    return PUBLISHED_HEAD + "\n".join([_header(*(column.replace("_", " ") for column in columns)), *lines]) + "\n"


PUBLISHED_HEAD = """\
## Published results of other methods

As reported by their authors, each with different models, hardware, texts and baselines, so they are not comparable in
detail.

"""


def _refused(result: Result) -> str:
    command = f" (`{result['command']}`)" if result.get("command") else ""
    return f"- **{result['what']}**: {result['measured']}{command}"


def _cell(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.2f}"


def _header(*cells: object) -> str:
    return f"{_row(*cells)}\n|{'---|' * len(cells)}"


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _parse(line: str, where: str) -> Result:
    try:
        result = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error}.") from error
    if not isinstance(result, dict) or result.get("kind") not in KINDS:
        raise ValueError(f"{where} is not a result; its kind needs to be one of {', '.join(KINDS)}.")
    return result


def page(
    results: Annotated[
        list[Path], typer.Argument(help="JSON Lines files of results that benchmarks print with --json.")
    ],
) -> None:
    """Print the benchmark page in Markdown."""
    typer.echo(render_page(read_results(results)), nl=False)


app = program(page)

if __name__ == "__main__":
    app()
