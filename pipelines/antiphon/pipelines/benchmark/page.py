"""The page of results for the docs: tables out of stored lines of JSON. Measures nothing and rounds nothing away."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COMMAND = "antiphon bench page docs/results/*.jsonl > docs/benchmarks.md"
PUBLISHED = Path(__file__).parent / "published.json"
KINDS = ("replay", "speed", "drafters", "floor", "index", "refused")

Result = Mapping[str, Any]


def read_results(paths: Sequence[Path]) -> list[Result]:
    """The results in files of JSON lines, in their order.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is no result; it is named by its number.
    """
    results: list[Result] = []
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(
                f"There is no file {path}; give files of lines that `antiphon bench ... --json` wrote."
            )
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.strip():
                results.append(_parse(line, f"{path}, line {number}"))
    return results


def page_of(results: Sequence[Result]) -> str:
    """The whole page, in Markdown."""
    of = {kind: [result for result in results if result["kind"] == kind] for kind in KINDS}
    parts = [HEAD.format(command=COMMAND)]
    parts += [_summary(of["speed"])] if of["speed"] else []
    parts += [_replays(of["replay"])] if of["replay"] else []
    parts += [SPEED_HEAD, *map(_speed, of["speed"])] if of["speed"] else []
    parts += [DRAFTERS_HEAD, *map(_drafters, of["drafters"])] if of["drafters"] else []
    parts += [FLOOR_HEAD, *map(_floor, of["floor"])] if of["floor"] else []
    parts += [INDEX_HEAD, *map(_index, of["index"])] if of["index"] else []
    parts += [_published()]
    parts += [REFUSED_HEAD + "\n".join(map(_refused, of["refused"])) + "\n"] if of["refused"] else []
    return "\n".join(parts)


HEAD = """\
# Benchmarks

This page is what a command makes of stored results, and a test holds it against them:

    {command}

Every result is the last line of the command that stands beside it. `python-docs`, `genres` and the embedded models ship
with the package; the other files hold recorded answers of larger models and do not: give recorded answers of yours, in
the same format. Nothing here is a promise about another machine: ratios travel better than seconds, and those between
methods better than those to plain decoding.
"""

SUMMARY_HEAD = """\
## In one screen

The default drafter, `blend`, in every measured run below: how many times as fast as plain greedy decoding of
transformers, as the better of its two prompt lookups, and as the best of the other programs that ran, such as OpenVINO
GenAI's prompt lookup; and how many tokens a forward confirmed. What it brings depends on how much an answer repeats:
most where it quotes, least where there is nothing to copy.
"""

REPLAY_HEAD = """\
## Tokens per step, counted

Recorded answers, replayed without a model: how many tokens one forward confirms on average, the prefill counted as a
forward, and in brackets how many rows it verifies beside the first. These figures depend on no clock. A drafter that
learns from the model's own logits has none here, and shows only with a real model.
"""

SPEED_HEAD = """\
## Speed

Every method decodes the same prompts in turn (A B C A B C), through its own public interface; times are medians over
the rounds, summed over the texts. *× greedy* is the decoding phase against `model.generate` of transformers; *× lookup*
is against the better of its two prompt lookups (10 tokens with its defaults, and n=3); *prefill in* is the whole
request against plain decoding's. *× best other* is against the best of all other programs that ran, whichever that was,
without and with the prefill, and *first token* the mean time until it is there. What ours does for drafts before the
first token counts as decoding, while a first draft of prompt lookup that rides in the prefill is free. *Host* is
everything in a step that is not the model's own forward. *Replayed* means that the model's compute is real and its
choices are led along the recorded answer, so that all methods say the same; a run that said anything else would have
been refused. *Same text* is the share of outputs that are those of plain decoding, token for token. *nothing* is ours
without drafts: what it gains on a CPU is due to attention and weights in the order in which kernels read them, and what
other drafters gain beyond it is due to drafts.
"""

FLOOR_HEAD = """\
## The bandwidth floor

No step that reads all weights and the cache once is faster than the device copies memory. *Plain steps* is the cost of
a forward of so many rows against a forward of one.
"""

REFUSED_HEAD = """\
## What did not help

Measured, and left out.

"""


DEFAULTS = {"blend": "", "blend@openvino": ", on OpenVINO"}


def _summary(results: Sequence[Result]) -> str:
    """One row for each measured run: what the default drafter brought."""
    lines = [_head("what was decoded, where", "× greedy", "× lookup", "× best other", "tokens per step")]
    for result in results:
        for each in result["methods"]:
            if each["method"] in DEFAULTS:
                figures = (_cell(each.get(f"speedup{key}")) for key in ("", "_lookup", "_best"))
                what = f"{title(result)}{DEFAULTS[each['method']]}; {_where(result)}"
                lines.append(_row(what, *figures, _cell(each["tokens_per_step"])))
    return "\n".join([SUMMARY_HEAD, *lines, ""])


def _replays(results: Sequence[Result]) -> str:
    """One table for each number of rows: drafters down, sets across."""
    parts = [REPLAY_HEAD]
    for rows in sorted({result["rows"] for result in results}):
        parts.append(_replay_table(rows, [result for result in results if result["rows"] == rows]))
    return "\n".join(parts)


def _replay_table(rows: int, results: Sequence[Result]) -> str:
    sets = {_set(result): {each["drafter"]: each for each in result["drafters"]} for result in results}
    drafters = dict.fromkeys(name for figures in sets.values() for name in figures)
    lines = [_row(name, *(_count(figures.get(name)) for figures in sets.values())) for name in drafters]
    answers = _row("answers", *(next(iter(figures.values()))["samples"] for figures in sets.values()))
    commands = "\n".join(f"    {result['command']}" for result in results)
    return f"At most {rows} rows:\n\n{_head('drafter', *sets)}\n" + "\n".join([*lines, answers]) + f"\n\n{commands}\n"


def _count(figures: Result | None) -> str:
    return f"{figures['tokens_per_step']:.2f} ({figures['rows_per_step']:.0f})" if figures else ""


def _speed(result: Result) -> str:
    """One measured run: what it was, and a row for each method."""
    how = "replayed" if result["replayed"] else "the model's own answers"
    told = [key for key in SPEED if key not in LATER or all(key in each for each in result["methods"])]
    lines = [
        _head("method", *(SPEED[key] for key in told)),
        *(_row(each["method"], *(_cell(each[key]) for key in told)) for each in result["methods"]),
    ]
    return "\n".join(
        [
            f"### {title(result)}\n",
            f"{result['samples']} texts, {how}, prompts of {result['prompt_tokens']:.0f} tokens on average, at most "
            f"{result['max_new_tokens']} new ones, rows {result['rows']}, {result['rounds']} rounds; "
            f"{machine_line(result)}.\n",
            *lines,
            f"\n    {result['command']}\n",
        ]
    )


SPEED = {
    "tokens_per_s": "tokens/s",
    "speedup": "× greedy",
    "speedup_lookup": "× lookup",
    "speedup_whole": "prefill in",
    "speedup_best": "× best other",
    "speedup_best_whole": "prefill in",
    "first_token_ms": "first token, ms",
    "tokens_per_step": "tokens per step",
    "rows_per_step": "rows per step",
    "ms_per_step": "ms per step",
    "host_ms_per_step": "host",
    "draft_ms_per_step": "drafting",
    "prefill_seconds": "prefills, s",
    "identical": "same text",
}

LATER = ("speedup_best", "speedup_best_whole", "first_token_ms")
"""Columns that results of earlier versions do not have."""


def _drafters(result: Result) -> str:
    """One model, and a row for each drafter with its figures over every kind of text."""
    sets = result["sets"]
    rows = []
    for each in zip(*sets.values(), strict=True):
        cells = (f"{one['tokens_per_step']:.2f} ({one['rows_per_step']:.0f}), {one['speedup']:.2f} ×" for one in each)
        rows.append(_row(each[0]["method"], *cells))
    same = all(one["identical"] == 1 for found in sets.values() for one in found)
    texts = ", ".join(f"{count} texts of {kind}" for kind, count in result["samples"].items())
    kept = "every text that of plain decoding" if same else "not every text that of plain decoding"
    return "\n".join(
        [
            f"### {result['model']}, {result['dtype']}, rows {result['rows']}\n",
            f"{texts}, questions and summaries over {result['passages']} passages of "
            f"{result['file'].removesuffix('.jsonl')}, at most {result['max_new_tokens']} new tokens, "
            f"{result['rounds']} rounds, {kept}; {machine_line(result)}.\n",
            _head("drafter", *sets),
            *rows,
            f"\n    {result['command']}\n",
        ]
    )


DRAFTERS_HEAD = """\
## Every drafter, alone and together

Tokens per step, in brackets draft rows per step (masks and windows included), and the decoding phase against
`model.generate` of transformers. So many rows in every step cost a CPU more than they bring; *rows auto* is what is
used when nobody asks for rows. Chat has nothing to copy from but itself.
"""


def _index(result: Result) -> str:
    """One set of vectors, and a row for each way to search it."""
    return "\n".join(
        [
            f"### {result['vectors']:,} vectors of {result['dim']:,} numbers\n",
            f"{result['queries']:,} queries; {result['processor']} ({', '.join(result['units'])}).\n",
            _head("setting", *INDEX.values()),
            *(_row(each["setting"], *(_cell(each[key]) for key in INDEX)) for each in result["settings"]),
            f"\n    {result['command']}\n",
        ]
    )


INDEX = {
    "factory": "index",
    "recall@100": "recall@100",
    "recall@10": "recall@10",
    "queries_per_second": "queries per second",
    "milliseconds": "ms, one alone",
    "build_seconds": "build, s",
    "bytes_per_vector": "bytes per vector",
    "peak_gib": "peak so far, GiB",
}

INDEX_HEAD = """\
## Vector indexes

Recall against exact search, and what it takes. Bytes are those in memory; settings that score again also read
half-precision vectors from a memory map: with `k * n` the best n times k are scored so (0: none). *paper* is the
paper's setting (IVF4096, PQ64, 16 probes), with fewer lists where there are too few vectors to train so many.
"""


def _floor(result: Result) -> str:
    rows = zip(result["rows"], result["ms"], result["ratio"], result["of_floor"], strict=True)
    return "\n".join(
        [
            f"### {result['model']}, {result['dtype']}, after {result['context']:,} tokens\n",
            f"{result['weights_bytes'] / 1e9:.2f} GB of weights and {result['cache_bytes'] / 1e9:.2f} GB of cache at "
            f"{result['copy_gb_per_s']:.0f} GB/s: at least {result['floor_ms']:.2f} ms; {machine_line(result)}.\n",
            _head("rows", "ms", "plain steps", "floors"),
            *(_row(count, f"{ms:.2f}", f"{ratio:.2f}", f"{floors:.2f}") for count, ms, ratio, floors in rows),
            f"\n    {result['command']}\n",
        ]
    )


def _published() -> str:
    columns = ("method", "model", "hardware", "texts", "speedup", "tokens_per_step", "source")
    figures = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    lines = [_row(*(_cell(each.get(column)) for column in columns)) for each in figures]
    return PUBLISHED_HEAD + "\n".join([_head(*(column.replace("_", " ") for column in columns)), *lines]) + "\n"


PUBLISHED_HEAD = """\
## What others have published

As their authors report it, each with its own models, machine, texts and baseline: beside ours to be read, not to be
compared to the second digit.

"""


def _refused(result: Result) -> str:
    command = f" (`{result['command']}`)" if result.get("command") else ""
    return f"- **{result['what']}**: {result['measured']}{command}"


def title(result: Result) -> str:
    """What a measured run of methods was, in a few words."""
    asked = {None: None, 0: "no passages"}.get(result["passages"], f"{result['passages']} passages")
    shuffled = "references of another question" if result["shuffled"] else None
    parts = [result["model"], result["dtype"], _set(result), asked, shuffled]
    return ", ".join(part for part in parts if part)


def machine_line(result: Result) -> str:
    """Where a result comes from: the processor with its units and threads, or the GPU, and the versions."""
    units = f" ({', '.join(result['units'])})" if result["units"] else ""
    cpu = f"{result['processor']}{units}, {result['threads']} threads"
    where = cpu if result["device"] == "cpu" else _where(result)
    return f"{where}; torch {result['torch']}, transformers {result['transformers']}"


def _where(result: Result) -> str:
    """The processor, or the GPU."""
    return str(result["processor"] if result["device"] == "cpu" else result["device"])


def _set(result: Result) -> str:
    return f"{result['file'].removesuffix('.jsonl')}{': ' + result['task'] if result['task'] else ''}"


def _cell(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.2f}"


def _head(*cells: object) -> str:
    return f"{_row(*cells)}\n|{'---|' * len(cells)}"


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _parse(line: str, where: str) -> Result:
    try:
        result = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error}.") from error
    if not isinstance(result, dict) or result.get("kind") not in KINDS:
        raise ValueError(f"{where} is no result; its kind needs to be one of {', '.join(KINDS)}.")
    return result
