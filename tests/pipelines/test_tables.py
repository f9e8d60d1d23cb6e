"""Tables in the terminal: complete cells in a wide one, wrapped text in a narrow one, and no markup."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console, RenderableType

from antiphon.pipelines.rendering.tables import result_table


def shown(renderable: RenderableType, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, soft_wrap=True, highlight=False)
    console.print(renderable)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def test_a_narrow_table_wraps_its_text_and_shows_every_number() -> None:
    columns = {"question": "question", "steps": "steps", "ratio": "ratio", "found": "found"}
    row: dict[str, Any] = {"question": "word " * 20, "steps": 1234567, "ratio": 0.5, "found": None}
    lines = shown(result_table("Many", columns, [row]), 60)
    words = " ".join(lines).replace("│", " ").split()
    assert words.count("word") == 20
    assert {"1,234,567", "0.500", "-"} <= set(words)
    assert max(map(len, lines)) <= 60


def test_markup_and_control_characters_in_a_cell_are_text() -> None:
    (line,) = [line for line in shown(result_table("", {"a": "a"}, [{"a": "[bold]\x1b[2Jx"}]), 60) if "bold" in line]
    assert "[bold]␛[2Jx" in line
