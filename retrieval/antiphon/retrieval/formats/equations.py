"""Equations of Word (Office Math, ECMA-376, part 1, section 22.1) as a line of text."""

from __future__ import annotations

import re
from typing import Any

M = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
"""The namespace of the elements of equations."""

EXPONENT = re.compile(r"\s*[-+\u2212]?\d+\s*")
"""A raised text that is the exponent of the number before it, in contrast to the ``st`` of ``1st``."""

_BETWEEN = {"eqArr": "; ", "func": " ", "m": "; ", "mr": ", "}
_MARKS = {"sup": "^", "sub": "_", "lim": "_", "den": "/"}  # before a part


def linear(element: Any) -> str:
    """Return an equation, or a part of one, as text: ``a/b``, ``x^2``, ``√(x+1)``, ``∑_(i=1)^n x_i``."""
    name = element.tag.removeprefix(M)
    if name == "t":
        return element.text or ""
    parts = [(child.tag.removeprefix(M), linear(child)) for child in element if not child.tag.endswith("Pr")]
    if name == "d":
        begin, end, between = (
            _character(element, *each) for each in (("begChr", "("), ("endChr", ")"), ("sepChr", "|"))
        )
        return begin + between.join(text for _, text in parts) + end
    if name == "rad":
        degree = "".join(text for part, text in parts if part == "deg")
        return f"{_grouped(degree) if degree else ''}√({''.join(text for part, text in parts if part == 'e')})"
    if name == "nary":
        bounds = "".join(_MARKS[part] + _grouped(text) for part, text in parts if part != "e" and text)
        return f"{_character(element, 'chr', '∫')}{bounds} {parts[-1][1] if parts else ''}"
    if name == "acc":
        return "".join(text for _, text in parts) + _character(element, "chr", "\u0302")
    if name in _BETWEEN:
        return _BETWEEN[name].join(text for _, text in parts)
    has_groups = name in ("f", "sSup", "sSub", "sSubSup", "sPre", "limLow", "limUpp")
    return "".join(_MARKS.get(part, "") + _grouped(text) if has_groups else text for part, text in parts)


def _grouped(text: str) -> str:
    """Return a part of an equation, in parentheses if it is more than one number or name."""
    return text if len(text) == 1 or text.replace(".", "").isalnum() else f"({text})"


def _character(element: Any, name: str, default: str) -> str:
    found = element.find(f"*/{M}{name}")
    return default if found is None else found.get(f"{M}val") or ""
