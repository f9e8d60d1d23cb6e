"""The text of messages: quoted messages, lines of ``format=flowed``, and invitations."""

from __future__ import annotations

import re
from collections.abc import Iterator

from antiphon.retrieval.formats.document_builder import DocumentBuilder

_MARKS = re.compile(r"(?:> ?)*")
ORIGINAL = re.compile(  # a forwarded or answered message below its headers, as Outlook writes it
    r"^(?:[-_]{3,}[^\n]*\n+)?(?P<head>\*?(?:From|Von|De|Da|Van|Från|Fra|Od|От|发件人|差出人)\*?[ ]?[:：]\*?[ ][^\n]+\n)"
    r"(?=\*?[^\s:][^\n:]{0,20}[:：]\*?[ ])",
    re.MULTILINE,
)
_SENDER = re.compile(r"(?:\A|\n)(?P<sender>[^\n]+(?:\n[^\n]+)?[:：])\s*\Z")
_EVENT = {
    "SUMMARY": "",
    "STATUS": "Status: ",
    "DTSTART": "Begins: ",
    "DTEND": "Ends: ",
    "RRULE": "Repeats: ",
    "LOCATION": "Place: ",
    "ORGANIZER": "Organizer: ",
    "ATTENDEE": "Attendee: ",
    "DESCRIPTION": "",
}
_DATE = re.compile(r"(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)\d\d(Z?))?")


def add_thread(builder: DocumentBuilder, text: str, sender: str) -> None:
    """Add the text of a message: the sender's own text, then each quoted message.

    The line that names the sender of a quoted message becomes the heading of that message. If there
    are answers between the quotes, the order of the text is not changed.

    Args:
        text: The text; lines that begin with ``>`` are quoted.
        sender: The heading above the sender's own text if it follows a quote.
    """
    if original := ORIGINAL.search(text):
        quoted = text[original.start("head") :].split("\n")
        text = text[: original.start()] + "".join(f"> {line}\n" for line in quoted)
    blocks: list[tuple[int, str]] = []
    for line in text.split("\n"):
        rest = _MARKS.sub("", line, count=1)
        depth = line[: len(line) - len(rest)].count(">")
        if blocks and (depth == blocks[-1][0] or not rest.strip()):
            blocks[-1] = blocks[-1][0], f"{blocks[-1][1]}\n{rest}"
        else:
            blocks.append((depth, rest))
    names: dict[int, str] = {0: sender}
    sections = []
    for place, (depth, block) in enumerate(blocks):
        if place + 1 < len(blocks) and blocks[place + 1][0] > depth and (found := _SENDER.search(block)):
            names[blocks[place + 1][0]] = found["sender"]
            block = block[: found.start()]
        if block.strip():
            sections.append((depth, names.get(depth, "Quoted message"), block))
    own = sum(not depth for depth, *_ in sections)
    for place, (depth, name, block) in enumerate(
        sections if own > 1 else sorted(sections, key=lambda each: each[0] > 0)
    ):
        if depth or place:
            builder.add_heading(name, 2 + max(depth - 1, 0))
        builder.add(block)


def unflowed(text: str, *, without_spaces: bool) -> str:
    """Join the lines of ``format=flowed`` (RFC 3676). A line that ends with a space continues in the next line.

    Args:
        without_spaces: Whether the space at the line's end is not part of the text (``DelSp``).
    """
    lines: list[str] = []
    open_marks: str | None = None
    for line in text.split("\n"):
        marks = line[: len(line) - len(line.lstrip(">"))]
        rest = line[len(marks) :].removeprefix(" ")
        goes_on = rest.endswith(" ") and rest != "-- "
        shown = rest[:-1] if goes_on and without_spaces else rest
        if open_marks == marks and rest != "-- ":
            lines[-1] += shown
        else:
            lines.append(f"{marks} {shown}" if marks else shown)
        open_marks = marks if goes_on else None
    return "\n".join(lines)


def event_lines(calendar: str) -> Iterator[str]:
    """Yield the summary, time, place, people and description of each event in iCalendar data (RFC 5545)."""
    inside: list[str] = []
    for line in re.sub(r"\r?\n[ \t]", "", calendar).split("\n"):
        head, _, value = line.strip().partition(":")
        name, _, parameters = head.upper().partition(";")
        if name == "BEGIN":
            inside.append(value.upper())
        elif name == "END":
            inside = inside[:-1]
        elif inside[-1:] == ["VEVENT"] and name in _EVENT and value:
            zone = re.sub(r".*TZID=([^;]*).*|.*", r" \1", head.partition(";")[2]) if "TZID=" in parameters else ""
            person = re.search(r'CN="?([^";]+)', head)  # of the organizer or an attendee
            value = person[1] if person else re.sub("(?i)mailto:", "", value)
            text = re.sub(r"\\(.)", lambda match: "\n" if match[1] in "nN" else match[1], value)
            yield _EVENT[name] + (_time(text) + zone if name.startswith("DT") else text)


def _time(text: str) -> str:
    match = _DATE.fullmatch(text)
    if not match:
        return text
    year, month, day, hour, minute, utc = match.groups()
    return f"{year}-{month}-{day}" + (f" {hour}:{minute}{' UTC' * bool(utc)}" if hour else "")
