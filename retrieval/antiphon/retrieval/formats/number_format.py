"""Show the values of cells as spreadsheets do, by their number formats (ECMA-376, part 1, section 18.8.31)."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal

_TOKEN = re.compile(
    r'"(?P<quoted>[^"]*)"|\\(?P<escaped>.)|(?P<space>_.)|\*.|\[\$(?P<currency>[^-\]]*)[^\]]*\]|'
    r"\[(?P<elapsed>h+|m+|s+)\]|\[[^\]]*\]|(?P<noon>am/pm|a/p)|(?P<exponent>e[+-]0+)|(?P<date>y+|m+|d+|h+|s+)|"
    r"(?P<digits>[0#?.,]+)|(?P<other>.)",
    re.IGNORECASE | re.DOTALL,
)
_SECTION = re.compile(r'(?:"[^"]*"|\\.|\[[^\]]*\]|[^;"\\\[])+|(?<=;)(?=;|\Z)')
_LOCAL = re.compile(r"general|mm-dd-yy|m/d/yy h:mm|\[\$-F[48]00\].*", re.IGNORECASE)  # as each reader's system shows it
_FIELDS = dict(
    zip(
        ("y", "yy", "yyy", "yyyy", "m", "mm", "mmm", "mmmm", "d", "dd", "ddd", "dddd", "h", "hh", "s", "ss"),
        ("%y", "%y", "%Y", "%Y", "%m", "%m", "%b", "%B", "%d", "%d", "%a", "%A", "%H", "%H", "%S", "%S"),
        strict=True,
    )
)
_SECONDS = {"h": 3600, "m": 60, "s": 1}


def shown(value: object, code: str = "General") -> str:
    """Return a cell's value as a reader sees it: ``15%`` for 0.15 with the format ``0%``.

    Dates in the format of the reader's own system are shown in ISO 8601.

    Args:
        value: A text, number, truth value, date, time or duration; None is an empty cell.
        code: The number format.
    """
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return str(value).upper()
    sections = _SECTION.findall(code) or [code]
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta):
        return _iso(value) if _LOCAL.fullmatch(code) else _moment(value, [*_TOKEN.finditer(sections[0])])
    if not isinstance(value, int | float) or value - value != 0:
        return str(value)
    number = Decimal(f"{value:.15g}" if isinstance(value, float) else value)
    place = 1 if number < 0 and len(sections) > 1 else 2 if not number and len(sections) > 2 else 0
    if "general" in sections[place].lower() or "@" in sections[place] or "/" in sections[place]:  # also fractions
        return f"{number:f}" if isinstance(value, int) or not number or -10 < number.adjusted() < 15 else f"{number:E}"
    sign = "-" if number < 0 and not place else ""
    return sign + _number(abs(number), [*_TOKEN.finditer(sections[place])])


def _number(number: Decimal, tokens: Sequence[re.Match[str]]) -> str:
    """Put the digits of a number that is not negative into the placeholders of a format."""
    pattern = "".join(token["digits"] or "" for token in tokens)
    whole, point, decimals = pattern.partition(".")
    scale = 2 * sum(token["other"] == "%" for token in tokens) - 3 * (len(pattern) - len(pattern.rstrip(",")))
    number = number.scaleb(scale)
    power = number.adjusted() if number and any(token["exponent"] for token in tokens) else 0
    decimals = decimals.rstrip(",")
    rounded = number.scaleb(-power).quantize(Decimal(1).scaleb(-len(decimals)), ROUND_HALF_UP)
    integer, _, fraction = f"{rounded:f}".partition(".")
    fraction = fraction[: decimals.count("0")] + fraction[decimals.count("0") :].rstrip("0")
    integer = integer.lstrip("0").zfill(whole.count("0"))
    if "," in whole.rstrip(","):
        integer = re.sub(r"(?<=\d)(?=(?:\d{3})+\Z)", ",", integer)
    rest, parts = integer + (f".{fraction}" if fraction or (point and not decimals) else ""), list[str]()
    later = sum(len(token["digits"] or "") for token in tokens)
    for token in tokens:
        if token["digits"]:  # the first placeholders take all digits that do not fit, as in 00-00
            later -= len(token["digits"])
            cut = max(len(rest) - later, 0) if later and not point else len(rest)
            parts.append(rest[:cut])
            rest = rest[cut:]
        elif token["exponent"]:
            parts.append(f"E{power:+03d}")
        else:
            parts.append(_literal(token))
    return "".join(parts).strip()


def _moment(value: datetime.date | datetime.time | datetime.timedelta, tokens: Sequence[re.Match[str]]) -> str:
    moment = datetime.datetime(1900, 1, 1)
    if isinstance(value, datetime.date):
        moment = value if isinstance(value, datetime.datetime) else datetime.datetime.combine(value, datetime.time())
    elif isinstance(value, datetime.time):
        moment = datetime.datetime.combine(moment, value)
    total = value if isinstance(value, datetime.timedelta) else moment - datetime.datetime(1900, 1, 1)
    moment = moment + value if isinstance(value, datetime.timedelta) else moment
    units = [(token["elapsed"] or token["date"] or "").lower() for token in tokens]
    parts = list[str]()
    for place, (token, unit) in enumerate(zip(tokens, units, strict=True)):
        before = next((each for each in reversed(units[:place]) if each), "")
        after = next((each for each in units[place + 1 :] if each), "")
        if token["elapsed"]:
            parts.append(str(int(total.total_seconds() // _SECONDS[unit[0]])).zfill(len(unit)))
        elif unit:
            name = "%M" if unit in ("m", "mm") and (before[:1] == "h" or after[:1] == "s") else _FIELDS.get(unit, "%B")
            name = "%I" if name == "%H" and any(each["noon"] for each in tokens) else name
            text = moment.strftime(name)
            parts.append(text.lstrip("0") or "0" if len(unit) == 1 and unit != "y" else text)
        elif token["digits"] and before[:1] == "s":  # fractions of a second
            parts.append(f".{moment.microsecond:06d}"[: len(token["digits"])])
        else:
            parts.append(moment.strftime("%p") if token["noon"] else token["digits"] or _literal(token))
    return "".join(parts).strip()


def _literal(token: re.Match[str]) -> str:
    names = ("quoted", "escaped", "currency", "date", "other")
    return " " if token["space"] else next((token[name] for name in names if token[name]), "")


def _iso(value: datetime.date | datetime.time | datetime.timedelta) -> str:
    if isinstance(value, datetime.datetime):
        return value.date().isoformat() if value.time() == datetime.time() else value.isoformat(" ", "seconds")
    return str(value)
