"""Every table of the commands on narrow and wide terminals: no number is truncated and no line is too long."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from rich.console import Console, RenderableType

from antiphon.pipelines.benchmark.run import MethodRun
from antiphon.pipelines.benchmark.speed import MethodFigures, Speed
from antiphon.pipelines.cli import bench, demo, doctor_report, keys
from antiphon.pipelines.rendering.tables import ResultTable, property_card, result_table
from benchmarks import exactness, indexing
from benchmarks.vllm import __main__ as vllm
from tests.import_graph import MODULES

QUESTION = "Can my company sell a product that contains Python without paying anyone?"
NUMBERS = count(1)


def unique_number() -> float:
    """Return a number that is unique among the cells and as wide as the results of benchmarks."""
    return 1000 + next(NUMBERS) / 1000


def rows_of(columns: dict[str, str], text: str, rows: int = 3) -> list[dict[str, Any]]:
    """Return rows of numbers, with a name in the first column.

    Args:
        columns: the headings by key.
        text: the beginning of the names.
        rows: the number of rows.
    """
    first, *rest = columns
    return [{first: f"{text}+{row}"} | {key: unique_number() for key in rest} for row in range(rows)]


def raced() -> Speed:
    runs = [MethodRun((1, 2, 3), 2 * unique_number(), unique_number(), 2, None) for _ in demo.PROGRAMS]
    return Speed(tuple(MethodFigures(name, [[run]]) for name, run in zip(demo.PROGRAMS, runs, strict=True)))


def tables() -> Iterator[tuple[str, ResultTable]]:
    """Yield every table that a command prints, and three of the benchmarks, with invented figures."""
    yield "demo", demo.race_table(raced())
    rights = {"read": ["handbook"], "write": [], "requests_per_minute": unique_number()}
    yield "keys", keys.key_table("Keys", [{"name": "ana", **rights}, {"name": "wiki-bot", **rights, "write": ["*"]}])
    yield "doctor", doctor_report.cost_table({64: {1: 0.0123, 2: 0.0456, 64: 1.789}, 918: {1: 0.0147, 2: 0.0258}})
    yield "speed", result_table("reader, float32", bench.SPEED, rows_of(bench.SPEED, "blend+lookahead"))
    yield "steps", result_table("In one step", bench.STEPS, rows_of(bench.STEPS, "blend+lookahead"))
    kinds = [
        {"dtype": kind} | {key: unique_number() for key in exactness.EXACTNESS} for kind in ("float32", "bfloat16")
    ]
    yield "exactness", exactness.exactness_table("some/hub-model-of-a-long-name", kinds)
    yield "vllm", result_table("4 requests, 4 at once", vllm.COLUMNS, rows_of(vllm.COLUMNS, "antiphon"))
    rows = rows_of(indexing.INDEXING, "x")
    indexes = [row | {"factory": "OPQ64_256,IVF65536_HNSW32,PQ64x4fsr,RFlat"} for row in rows]
    yield "indexing", result_table("100,000 vectors of 1,024", indexing.INDEXING, indexes)


BENCHMARKS = ("exactness", "vllm", "indexing")
TABLES = dict(tables())


def shown(renderable: RenderableType, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, soft_wrap=True, highlight=False)
    console.print(renderable)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", TABLES)
def test_a_table_shows_every_number_completely_and_fits_the_terminal(name: str, width: int) -> None:
    table = TABLES[name]
    lines = shown(table, width)
    words = " ".join(lines).replace("│", " ").replace("┃", " ").split()
    numbers = [word for column in table.columns if not column.is_text for cell in column.cells for word in cell.split()]
    assert len(numbers) > 1
    assert [number for number in numbers if number not in words] == []
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_long_texts_wrap_and_are_complete(width: int) -> None:
    rows = [{"question": QUESTION, "seconds": unique_number()} for _ in range(2)]
    words = " ".join(shown(result_table("", {key: key for key in rows[0]}, rows, is_open=True), width)).split()
    assert [words.count(word) for word in ("paying", "company", "contains")] == [2, 2, 2]


def test_a_table_wider_than_the_terminal_is_split_with_the_first_column_repeated() -> None:
    columns = {"name": "name"} | {str(number): f"figure {number}" for number in range(9)}
    lines = shown(result_table("Many", columns, [dict.fromkeys(columns, 1234567.5) | {"name": "blend"}]), 60)
    assert sum("blend" in line for line in lines) == sum("name" in line for line in lines) == 3
    assert sum("Many" in line for line in lines) == 1


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_property_card_wraps_between_words(width: int) -> None:
    facts = {"model": "LlamaForCausalLM, 134,515,008 parameters, bfloat16 on cpu", "drafter auto": "word " * 60}
    lines = shown(property_card("smollm2", facts), width)
    assert {"134,515,008", "bfloat16", "auto"} <= set(" ".join(lines).split())
    assert max(map(len, lines)) <= width


def test_markup_and_control_characters_in_a_cell_are_text() -> None:
    (line,) = [line for line in shown(result_table("", {"a": "a"}, [{"a": "[bold]\x1b[2Jx"}]), 60) if "bold" in line]
    assert "[bold]␛[2Jx" in line


def test_every_table_of_a_command_is_made_by_result_table_and_tested_here() -> None:
    calls_found = 0
    for module, path in MODULES.items():
        if module.startswith("antiphon.pipelines") and path.parts[-2:] != ("rendering", "tables.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            assert "rich.table" not in [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
            calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
            calls_found += sum(isinstance(func, ast.Name) and func.id == "result_table" for func in calls)
    assert calls_found == len(TABLES) - len(BENCHMARKS)
