"""Every table of the commands on narrow and wide terminals: no number is truncated and no line is too long."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from antiphon.pipelines.benchmark.race import TITLES, RaceResult
from antiphon.pipelines.benchmark.run import MethodRun
from antiphon.pipelines.cli import bench, bench_speed, bench_vllm, bita, demo, doctor_report, keys
from antiphon.pipelines.rendering.tables import ResultTable, property_card, result_table
from benchmarks import (
    answer_selection,
    bandwidth_floor,
    drafters,
    drafting_cost,
    exactness,
    first_token,
    own_questions,
    reading,
    retrieval,
)
from benchmarks.batch import __main__ as batch
from recipes.bita import evaluate
from recipes.reader import __main__ as reader
from tests.import_graph import MODULES

ROOT = Path(__file__).parents[2]

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


def drafting_report() -> drafting_cost.DraftingReport:
    costs = [
        drafting_cost.DraftingCost(
            name, *({size: next(NUMBERS) / 10_000 for size in drafting_cost.SIZES} for _ in ("draft", "build"))
        )
        for name in ("blend", "recycling", "blend+lookahead")
    ]
    return drafting_cost.DraftingReport(32, drafting_cost.SIZES, tuple(costs), 1.0)


def raced(name: str) -> RaceResult:
    return RaceResult(name, (MethodRun((1, 2, 3), unique_number(), unique_number(), 2, None),))


def learned_figures() -> evaluate.GuessFigures:
    per_step = {shape: unique_number() for shape in ("chain", "wide")}
    return evaluate.GuessFigures(3, 9, per_step, [[0.1 * mask + rank / 100 for rank in range(5)] for mask in range(3)])


def tables() -> Iterator[tuple[str, ResultTable]]:
    """Yield every table that a command prints, with invented figures."""
    yield "demo", demo.race_table([raced(name) for name in TITLES])
    rights = {"read": ["handbook"], "write": [], "requests_per_minute": unique_number()}
    yield "keys", keys.key_table("Keys", [{"name": "ana", **rights}, {"name": "wiki-bot", **rights, "write": ["*"]}])
    yield "doctor", doctor_report.cost_table({64: {1: 0.0123, 2: 0.0456, 64: 1.789}, 918: {1: 0.0147, 2: 0.0258}})
    yield "drafting", drafting_cost.drafting_table(drafting_report())
    kinds = [
        {"dtype": kind} | {key: unique_number() for key in exactness.EXACTNESS} for kind in ("float32", "bfloat16")
    ]
    yield "exactness", exactness.exactness_table("some/hub-model-of-a-long-name", kinds)
    yield "bita", bita.training_table({"trained": learned_figures(), "untrained": learned_figures()})
    yield "reader", reader.judgement_table({"sentences_that_were_wanted": unique_number(), "questions": next(NUMBERS)})
    yield "replay", result_table("40 answers", bench.REPLAY, rows_of(bench.REPLAY, "blend+bita+lookahead"))
    yield "retrieval", result_table("40 questions", retrieval.RETRIEVAL, rows_of(retrieval.RETRIEVAL, "hybrid"))
    yield "speed", result_table("reader, float32", bench_speed.SPEED, rows_of(bench_speed.SPEED, "blend+lookahead"))
    yield "steps", result_table("In one step", bench_speed.STEPS, rows_of(bench_speed.STEPS, "blend+lookahead"))
    yield "answers", result_table("179 questions", bench.ANSWERS, rows_of(bench.ANSWERS, "handbook"))
    floor = [{key: unique_number() for key in bandwidth_floor.FLOOR} for _ in range(3)]
    yield "floor", result_table("llama-2-7b, bfloat16, after 1,024 tokens", bandwidth_floor.FLOOR, floor)
    yield "drafters", result_table("rag", drafters.COLUMNS, rows_of(drafters.COLUMNS, "blend+lookahead"))
    indexes = [row | {"factory": "OPQ64_256,IVF65536_HNSW32,PQ64x4fsr,RFlat"} for row in rows_of(bench.INDEXING, "x")]
    first = [{key: unique_number() for key in first_token.FIRST}]
    yield "first token", result_table("10 questions, 5 passages, reader", first_token.FIRST, first)
    yield (
        "batch",
        result_table("8 texts, 8 at once", batch.COLUMNS, rows_of(batch.COLUMNS, "openvino-genai")),
    )
    yield "vllm", result_table("4 requests, 4 at once", bench_vllm.COLUMNS, rows_of(bench_vllm.COLUMNS, "antiphon"))
    yield "index", result_table("100,000 vectors of 1,024", bench.INDEXING, indexes)
    starts = [{key: unique_number() for key in bench_speed.STARTS} | {"program": "openvino-genai"}]
    yield "starts", result_table("New process", bench_speed.STARTS, starts)
    llama_cpp = [{key: unique_number() for key in bench_speed.LLAMA_CPP} | {"model": "qwen2 1.5B Q4_K - Medium"}]
    yield "llama.cpp", result_table("llama.cpp without drafts", bench_speed.LLAMA_CPP, llama_cpp)
    read = [{key: unique_number() for key in reading.COLUMNS} | {"format": "Markdown", "library": "markdown-it-py"}]
    selected = rows_of(answer_selection.ANSWERS, "+ language model")
    yield "selection", result_table("227 questions", answer_selection.ANSWERS, selected)
    asked = rows_of(own_questions.COLUMNS, "handbook")
    yield "own questions", result_table("24 questions", own_questions.COLUMNS, asked)
    yield "reading", result_table("Speed of reading documents", reading.COLUMNS, read)


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
    words = " ".join(shown(TABLES["demo"], width)).split()
    assert words.count("paying") == words.count("company") == 2 * len([w for w in words if w == "question"])


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


def test_every_table_is_made_by_result_table_and_tested_here() -> None:
    calls_found = 0
    paths = [
        *(path for module, path in MODULES.items() if module.startswith("antiphon.pipelines")),
        *(path for folder in ("benchmarks", "recipes") for path in (ROOT / folder).rglob("*.py")),
    ]
    for path in paths:
        if path.parts[-2:] != ("rendering", "tables.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            assert "rich.table" not in [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
            calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
            calls_found += sum(isinstance(func, ast.Name) and func.id == "result_table" for func in calls)
    families = 1  # the table of families, which the tests of the doctor print
    assert calls_found == len(TABLES) + families
