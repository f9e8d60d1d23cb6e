"""The front matter of text files: metadata in YAML between ``---`` lines, or in TOML between ``+++`` lines."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

_FRONT_MATTER = re.compile(
    r"(?:---[ \t]*\r?\n(?P<yaml>.*?)^(?:---|\.\.\.)|\+\+\+[ \t]*\r?\n(?P<toml>.*?)^\+\+\+)[ \t]*(?:\r?\n|\Z)",
    re.DOTALL | re.MULTILINE,
)
_MOST_CHARACTERS = 65536
_MOST_VALUES = 1000
_SCALARS = (str, int, float, bool, datetime.date, type(None))


def front_matter(text: str) -> tuple[dict[str, Any], int]:
    """Return the metadata at the beginning of a text, and the index after them; ``({}, 0)`` if there are none.

    Only JSON values and dates are returned; lists and mappings with very many parts are left out. A
    title is converted to a string.

    Args:
        text: The text of a file, without a byte order mark.
    """
    match = _FRONT_MATTER.match(text, 0, _MOST_CHARACTERS)
    found = _parsed(match) if match else None
    if match is None or not isinstance(found, Mapping):
        return {}, 0
    metadata: dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, _SCALARS) or _is_small(value):
            metadata[str(name)] = value
    if "title" in metadata:
        metadata["title"] = " ".join(str(metadata["title"] or "").split())
    return {name: value for name, value in metadata.items() if name != "title" or value}, match.end()


def _parsed(match: re.Match[str]) -> Any:
    import tomllib

    import yaml

    try:
        return tomllib.loads(match["toml"]) if match["yaml"] is None else yaml.safe_load(match["yaml"])
    except (yaml.YAMLError, ValueError, RecursionError):
        return None  # not front matter, such as prose between two rules


def _is_small(value: Any) -> bool:
    """Return whether a value has few parts, and all of them are JSON values or dates.

    If YAML refers to a part several times, each reference counts.
    """
    pending, seen = [value], 0
    while pending and seen <= _MOST_VALUES:
        part = pending.pop()
        seen += 1
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict) and all(isinstance(name, str) for name in part):
            pending += part.values()
        elif not isinstance(part, _SCALARS):
            return False
    return seen <= _MOST_VALUES
