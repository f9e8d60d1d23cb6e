"""The automatic numbers of paragraphs in Word documents (ECMA-376, part 1, section 17.9)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from antiphon.retrieval.formats.numerals import numeral

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
"""The namespace of the elements of Word documents."""

_MOST_STYLES = 20  # in a chain of styles that are based on each other


class ParagraphNumbers:
    """Counts the numbered paragraphs of a document.

    Args:
        numbering: The root of ``word/numbering.xml``, or None.
        styles: The root of ``word/styles.xml``, or None.
    """

    def __init__(self, numbering: Any, styles: Any) -> None:
        roots = [numbering] if numbering is not None else []
        self._lists = {
            each.get(f"{W}abstractNumId"): each for root in roots for each in root.iterfind(f"{W}abstractNum")
        }
        self._links = {value: each for each in self._lists.values() if (value := _value(each, "styleLink"))}
        self._nums = {each.get(f"{W}numId"): each for root in roots for each in root.iterfind(f"{W}num")}
        self._styles = {
            each.get(f"{W}styleId"): each for each in ([] if styles is None else styles.iterfind(f"{W}style"))
        }
        self._counts: dict[Any, dict[int, int]] = {}
        self._started: set[tuple[str, int]] = set()

    def is_hidden(self, element: Any, kind: str) -> bool:
        """Return whether a run (``r``) or a paragraph (``p``) is hidden, by its properties or its style."""
        styles = self._styles_of(_value(element, f"{kind}Pr/{W}{kind}Style"))
        switches = (each.find(f"{W}rPr/{W}vanish") for each in (*([element] * (kind == "r")), *styles))
        return is_on(next((switch for switch in switches if switch is not None), None))

    def label(self, paragraph: Any) -> str:
        """Count a paragraph; return the number that Word prints before it, or an empty text."""
        style = _value(paragraph, f"pPr/{W}pStyle")
        number, level, own_style = "", "", style
        for properties, name in self._properties(paragraph, style):
            number = number or _value(properties, "numId")
            level = level or _value(properties, "ilvl")
            own_style = name if number else own_style
            if number:
                break
        num = self._nums.get(number)
        if num is None:
            return ""
        abstract = self._lists.get(_value(num, "abstractNumId"))
        abstract = self._links.get(_value(abstract, "numStyleLink"), abstract) if abstract is not None else None
        if abstract is None:
            return ""
        levels = {int(each.get(f"{W}ilvl", 0)): each for each in abstract.iterfind(f"{W}lvl")}
        changed = {int(each.get(f"{W}ilvl", 0)): each for each in num.iterfind(f"{W}lvlOverride")}
        levels |= {at: lvl for at, each in changed.items() if (lvl := each.find(f"{W}lvl")) is not None}
        linked = (at for at, each in levels.items() if _value(each, "pStyle") == own_style)
        place = int(level) if level.isdecimal() else next(linked, 0)
        if place not in levels:
            return ""
        return self._counted(abstract, number, place, levels, changed)

    def _counted(self, abstract: Any, number: str, place: int, levels: dict[int, Any], changed: dict[int, Any]) -> str:
        counts = self._counts.setdefault(id(abstract), {})
        override = _value(changed[place], "startOverride") if place in changed else ""
        if override and (number, place) not in self._started:
            self._started.add((number, place))
            counts[place] = int(override) - 1
        starts = {at: int(_value(each, "start") or 1) for at, each in levels.items()}
        for above in range(place):
            counts.setdefault(above, starts.get(above, 1))
        counts[place] = counts.get(place, starts[place] - 1) + 1
        for below in [at for at in counts if at > place]:
            del counts[below]
        if _value(levels[place], "numFmt") == "bullet":
            return ""
        is_legal = levels[place].find(f"{W}isLgl") is not None

        def printed(match: re.Match[str]) -> str:
            at = int(match[1]) - 1
            kind = _value(levels[at], "numFmt") if at in levels else "decimal"
            return numeral(counts.get(at, 1), "decimal" if is_legal else kind)

        return re.sub(r"%(\d)", printed, _value(levels[place], "lvlText")).strip()

    def _properties(self, paragraph: Any, style: str) -> Iterator[tuple[Any, str]]:
        """Yield the numbering properties of a paragraph, then of its styles, with style names."""
        yield from ((each, style) for each in paragraph.iterfind(f"{W}pPr/{W}numPr"))
        for found in self._styles_of(style):
            yield from ((each, found.get(f"{W}styleId")) for each in found.iterfind(f"{W}pPr/{W}numPr"))

    def _styles_of(self, style: str) -> Iterator[Any]:
        """Yield a style and its base styles."""
        for _ in range(_MOST_STYLES):
            found = self._styles.get(style)
            if found is None:
                return
            yield found
            style = _value(found, "basedOn")


def is_on(switch: Any) -> bool:
    """Return whether an on/off property is present and on."""
    return switch is not None and switch.get(f"{W}val") not in ("0", "false", "off")


def _value(element: Any, name: str) -> str:
    """Return the value of a property, or an empty string."""
    found = element.find(f"{W}{name}")
    return "" if found is None else found.get(f"{W}val") or ""
