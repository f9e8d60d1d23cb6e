"""Show the values of cells as spreadsheets do, by their number formats (ECMA-376, part 1, section 18.8.31)."""

from __future__ import annotations

import datetime
import operator
import re
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

_TOKEN = re.compile(
    r'"([^"]*)"|\\(.)|[_*].|\[\$([^-\]]*)[^\]]*\]|\[[^\]]*\]|(?P<digits>[0#?.,]+(?:e[+-]0+)?)|(.)',
    re.IGNORECASE | re.DOTALL,
)
_SECTION = re.compile(r'((?:"[^"]*"|\\.|\[[^\]]*\]|[^;"\\\[])*);')
_CONDITION = re.compile(r"\[(<=|>=|<>|[<>=])(-?[\d.]+)\]")
_COMPARED = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "<>": operator.ne,
}
_FRACTION = re.compile(r"(?P<whole>[#?0]+ +)?[#?0]+/(?P<below>[#?0]+|\d+)")
_AS_IT_IS = re.compile(r"general|[@/]", re.IGNORECASE)


def shown(value: object, code: str = "General") -> str:
    """Return a cell's value as a spreadsheet shows it: ``15%`` for 0.15 with the format ``0%``.

    Dates and times are in ISO 8601, which all readers understand, and durations in hours, minutes and seconds.

    Args:
        value: A text, number, truth value, date, time or duration; None for an empty cell.
        code: The number format.
    """
    if isinstance(value, bool):
        return str(value).upper()
    precision = "seconds" if "s" in code.lower() else "minutes"
    if isinstance(value, datetime.datetime):
        return value.date().isoformat() if value.time() == datetime.time() else value.isoformat(" ", precision)
    if isinstance(value, datetime.time):
        return value.isoformat(precision)
    if isinstance(value, datetime.timedelta):
        minutes, seconds = divmod(round(value.total_seconds()), 60)
        return f"{minutes // 60}:{minutes % 60:02}" + f":{seconds:02}" * ("s" in code.lower())
    sections = _SECTION.findall(f"{code};") or [code]
    if not isinstance(value, int | float) or value - value != 0:
        return "" if value is None or sections[3:] == [""] else str(value)
    number = Decimal(f"{value:.15g}" if isinstance(value, float) else value)
    if any(conditions := [*map(_CONDITION.search, sections)]):
        met = (not each or _COMPARED[each[1]](number, Decimal(each[2])) for each in conditions)
        section = next((section for section, is_met in zip(sections, met, strict=True) if is_met), "General")
        return shown(value, _CONDITION.sub("", section))
    place = 1 if number < 0 and len(sections) > 1 else 2 if not number and len(sections) > 2 else 0
    if match := _FRACTION.search(sections[place]):
        return "-" * (number < 0 and not place) + _as_fraction(abs(number), match)
    if _AS_IT_IS.search(sections[place]):
        return f"{number:f}" if isinstance(value, int) or not number or -10 < number.adjusted() < 15 else f"{number:E}"
    return ("-" if number < 0 and not place else "") + _formatted(abs(number), sections[place])


def _as_fraction(number: Decimal, form: re.Match[str]) -> str:
    """Return a number of 0 or more, written as a fraction, such as ``2 1/4`` for the format ``# ?/?``."""
    whole, rest = divmod(Fraction(number), 1) if form["whole"] else (0, Fraction(number))
    below = int(form["below"]) if form["below"].isdecimal() else 0
    nearest = rest.limit_denominator(10 ** len(form["below"]) - 1).as_integer_ratio()
    above, below = (round(rest * below), below) if below else nearest
    whole, above = (whole + 1, 0) if form["whole"] and above == below else (whole, above)
    return " ".join([*([str(whole)] * bool(whole or not above)), *([f"{above}/{below}"] * bool(above))])


def _formatted(number: Decimal, section: str) -> str:
    """Put the digits of a non-negative number into the placeholders of a format's section."""
    tokens = [*_TOKEN.finditer(section)]
    pattern = "".join(token["digits"] or "" for token in tokens)
    whole, point, decimals = pattern.lower().partition("e")[0].partition(".")
    scale = 2 * sum(token[0] == "%" for token in tokens) - 3 * (len(pattern) - len(pattern.rstrip(",")))
    number, decimals = number.scaleb(scale), decimals.rstrip(",")
    power = number.adjusted() if "e" in pattern.lower() else 0
    rounded = number.scaleb(-power).quantize(Decimal(1).scaleb(-len(decimals)), ROUND_HALF_UP)
    integer, _, fraction = f"{rounded:f}".partition(".")
    fraction = fraction[: decimals.count("0")] + fraction[decimals.count("0") :].rstrip("0")
    integer = integer.lstrip("0").zfill(whole.count("0"))
    if "," in whole.rstrip(","):
        integer = re.sub(r"(?<=\d)(?=(?:\d{3})+\Z)", ",", integer)
    rest = integer + f".{fraction}" * bool(fraction) + f"E{power:+03d}" * ("e" in pattern.lower())
    parts, later = list[str](), len(pattern)
    for token in tokens:
        later -= len(token["digits"] or "")
        cut = (max(len(rest) - later, 0) if later and not point else len(rest)) if token["digits"] else 0
        parts += [
            rest[:cut],
            " " if token[0][0] == "_" else next(filter(None, token.groups("")), "") * (not token["digits"]),
        ]
        rest = rest[cut:]
    return "".join(parts).strip()
