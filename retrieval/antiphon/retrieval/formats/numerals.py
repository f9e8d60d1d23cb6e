"""Numbers of list items as word processors and browsers print them: 1, 01, a, A, i, I."""

from __future__ import annotations

_ROMAN = (
    *((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc")),
    *((50, "l"), (40, "xl"), (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i")),
)


def numeral(number: int, kind: str) -> str:
    """Return a number in a format of Word (``ST_NumberFormat``); in decimal digits if the format is unknown.

    Args:
        kind: The format, such as ``lowerRoman``.
    """
    if kind == "none":
        return ""
    if kind == "decimalZero":
        return f"{number:02}"
    if kind == "ordinal":
        return f"{number}{'th' if number % 100 in (11, 12, 13) else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
    if kind.endswith("Letter") and number > 0:
        text = chr(ord("a") + (number - 1) % 26) * ((number + 25) // 26)
    elif kind.endswith("Roman") and 0 < number < 4000:
        text, rest = "", number
        for value, letters in _ROMAN:
            text += letters * (rest // value)
            rest %= value
    else:
        text = str(number)
    return text.upper() if kind.startswith("upper") else text
