"""The catalogue of faults fits the source, and the table of detecting tests fits the catalogue."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.faults import table
from tests.faults.catalogue import PARTS, ROOT, faults
from tests.faults.runner import failing_tests, function_of


@cache
def code_of(path: Path) -> str:
    return ast.dump(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("part", PARTS)
def test_every_fault_applies_to_the_source_and_changes_code(part: str) -> None:
    edits = [(name, edit) for name, fault in faults().items() for edit in fault.edits]
    own = [(name, edit) for name, edit in edits if edit.path.is_relative_to(ROOT / part)]
    changed = {name: ast.parse(edit.apply(edit.path.read_text(encoding="utf-8"))) for name, edit in own}
    assert len(changed) > 5
    assert [name for name, edit in own if ast.dump(changed[name]) == code_of(edit.path)] == []


def test_every_fault_is_in_the_table_and_is_detected_by_tests_that_exist() -> None:
    recorded = table.read()
    assert recorded.keys() == faults().keys(), "run: make faults"
    assert {name for name, tests in recorded.items() if not tests} == set()
    functions = {function_of(test) for tests in table.read().values() for test in tests}
    missing = [test for test in functions if not _exists(*test.split("::"))]
    assert missing == [], "run: make faults"


def _exists(file: str, *names: str) -> bool:
    path = ROOT / file
    return path.exists() and any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == names[-1]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", faults())
def test_a_fault_turns_its_tests_red(name: str) -> None:
    expected = table.read()[name]
    assert [function_of(test) for test in failing_tests(name, expected)] == [function_of(test) for test in expected]
