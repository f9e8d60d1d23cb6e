"""The recorded table: which tests fail for each fault."""

import json
from collections.abc import Mapping
from pathlib import Path

FILE = Path(__file__).parent / "table.json"


def read() -> dict[str, list[str]]:
    """Return the failing tests by fault."""
    table: dict[str, list[str]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return table


def write(table: Mapping[str, list[str]]) -> None:
    """Replace the table."""
    FILE.write_text(json.dumps(dict(sorted(table.items())), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def summary(table: Mapping[str, list[str]]) -> str:
    """Return how many faults are detected by two tests, by one and by none."""
    counts = [min(len(tests), 2) for tests in table.values()]
    missed = ", ".join(name for name, tests in sorted(table.items()) if not tests)
    text = (
        f"{len(counts)} faults: {counts.count(2)} are detected by two tests, {counts.count(1)} by one, "
        f"{counts.count(0)} by none"
    )
    return f"{text} ({missed})." if missed else f"{text}."
