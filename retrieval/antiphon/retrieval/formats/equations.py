"""Equations of Word and PowerPoint (Office Math, ECMA-376, part 1, section 22.1) as a line of text."""

from __future__ import annotations

from typing import Any

M = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
"""The namespace of the elements of equations."""

_FORMS = {
    "f": "{num}/{den}",
    "sSup": "{e}^{sup}",
    "sSub": "{e}_{sub}",
    "sSubSup": "{e}_{sub}^{sup}",
    "sPre": "_{sub}^{sup}{e}",
    "limLow": "{e}_{lim}",
    "limUpp": "{e}^{lim}",
    "func": "{fName} {e}",
}
_PARTS = ("num", "den", "e", "sup", "sub", "lim", "fName", "deg")


def linear(element: Any) -> str:
    """Return an equation, or a part of one, as text: ``a/b``, ``x^2``, ``√(x+1)``, ``∑_(i=1)^n x_i``."""
    name = element.tag.removeprefix(M)
    if name == "t":
        return element.text or ""
    if name.endswith("Pr"):  # properties
        return ""
    inner = {part: linear(found) for part in _PARTS if (found := element.find(f"{M}{part}")) is not None}
    several = [linear(each) for each in element.iterfind(f"{M}e")]
    if name == "rad":
        return f"{_grouped(inner.get('deg', '')) if inner.get('deg') else ''}√({inner.get('e', '')})"
    if name == "nary":
        bounds = "".join(
            f"{mark}{_grouped(inner[part])}" for part, mark in (("sub", "_"), ("sup", "^")) if inner.get(part)
        )
        return f"{_character(element, 'naryPr/{}chr', '∫')}{bounds} {inner.get('e', '')}"
    if name == "d":
        begin, end = _character(element, "dPr/{}begChr", "("), _character(element, "dPr/{}endChr", ")")
        return begin + _character(element, "dPr/{}sepChr", "|").join(several) + end
    if name == "acc":
        return several[0] + _character(element, "accPr/{}chr", "\u0302") if several else ""
    if name in ("eqArr", "m"):
        rows = several or [", ".join(linear(cell) for cell in row) for row in element.iterfind(f"{M}mr")]
        return "; ".join(rows)
    if name in _FORMS:
        shown = {
            part: text if part in ("fName",) or (name == "func") else _grouped(text) for part, text in inner.items()
        }
        return _FORMS[name].format_map({**dict.fromkeys(_PARTS, ""), **shown})
    return "".join(map(linear, element))


def _grouped(text: str) -> str:
    """Return a part of an equation, in parentheses if it is not one number or name."""
    return text if len(text) == 1 or text.replace(".", "").isalnum() else f"({text})"


def _character(element: Any, path: str, default: str) -> str:
    found = element.find(M + path.format(M))
    return default if found is None else found.get(f"{M}val") or ""
