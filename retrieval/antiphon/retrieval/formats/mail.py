"""Read e-mail with the standard library: messages (eml) with their attachments, and mailboxes (mbox)."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterator
from dataclasses import replace
from email import message_from_bytes
from email.errors import MessageError
from email.header import decode_header, make_header
from email.message import Message
from email.utils import parsedate_to_datetime

from antiphon.retrieval.document import Document
from antiphon.retrieval.formats.document_builder import DocumentBuilder
from antiphon.retrieval.formats.html import read_html_document
from antiphon.retrieval.formats.limits import MAX_MEMBERS, Member
from antiphon.retrieval.formats.mail_text import ORIGINAL, add_thread, event_lines, unflowed
from antiphon.retrieval.formats.text import DecodedText, decode_text

_SHOWN = ("From", "To", "Cc", "Date")
_KNOWN = ("subject", "from", "date", "message-id", "received", "to")
_SEPARATOR = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\r\n\r\n))From [^\n]*\n")
_QUOTED_SEPARATOR = re.compile(rb"^>(>*From )", re.MULTILINE)
_BOM = b"\xef\xbb\xbf"
_LEAST_SHARE = 0.5
_BROKEN = (
    MessageError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
)  # from damaged headers and encodings


def read_mail_document(data: bytes, source: str) -> Document:
    """Read a message: its decoded headers, then its text.

    The text is the HTML part if there is no plain text, or if the plain text is only a remark. The
    sender's own text comes first. Quoted messages follow, each below the line that names the quoted
    sender. Of an invitation, the summary, time, place and description are read.

    Raises:
        ValueError: The data are not a message, or its parts are nested too deeply.
    """
    message = _parsed(data)
    builder, warnings = DocumentBuilder(), list[str]()
    subject = _header(message, "Subject")
    builder.add_heading(subject, 1)
    shown = {name: _header(message, name) for name in _SHOWN}
    builder.add("\n".join(f"{name}: {value}" for name, value in shown.items() if value))
    for body in _bodies(message):
        kind = body.get_content_subtype()
        if kind == "html":
            page = _html(body, source)
            warnings += page.warnings
            if "\n> " in f"\n{page.text}" or ORIGINAL.search(page.text):
                add_thread(builder, page.text, shown["From"])
            else:
                builder.add_document(page, level=1)
        elif kind == "calendar":
            builder.add("\n".join(event_lines(_text(body).text)))
        else:
            decoded = _text(body)
            warnings += decoded.warnings
            add_thread(builder, decoded.text, shown["From"])
    if pictures := sum(part.get_content_maintype() == "image" and not _is_attachment(part) for part in _parts(message)):
        warnings.append(f"its pictures were not read: {pictures}")
    facts = {"title": subject, "from": shown["From"], "to": shown["To"], "date": _date(shown["Date"])}
    return builder.build(source, facts, warnings)


def mail_attachments(data: bytes) -> Iterator[Member]:
    """Yield the attached files of a message, and attached messages as eml files.

    Raises:
        ValueError: The data are not a message, or the message has too many parts.
    """
    for number, part in enumerate(_parts(_parsed(data)), 1):
        if part.get_content_type() == "message/rfc822":
            yield Member(_file_name(part, number, ".eml"), _attached_message(part))
        elif _is_attachment(part):
            ending = mimetypes.guess_extension(part.get_content_type()) or ""
            yield Member(_file_name(part, number, ending), _bytes(part))


def mailbox_messages(data: bytes) -> Iterator[Member]:
    """Yield the messages of a mailbox (mbox) as eml files that are named by their numbers.

    Raises:
        ValueError: The data are not a mailbox, or the mailbox has too many messages.
    """
    marks = list(_SEPARATOR.finditer(data))
    if not marks or data[: marks[0].start()].strip():
        raise ValueError("it is not a mailbox (it does not begin with a From line)")
    if len(marks) > MAX_MEMBERS:
        raise ValueError(f"it contains {len(marks):,} messages; at most {MAX_MEMBERS:,} are read")
    ends = [mark.start() for mark in marks[1:]] + [len(data)]
    for number, (mark, end) in enumerate(zip(marks, ends, strict=True), 1):
        yield Member(f"{number}.eml", _QUOTED_SEPARATOR.sub(rb"\1", data[mark.end() : end]))


def _parsed(data: bytes) -> Message:
    try:
        message = message_from_bytes(data)  # the newer policy parses all headers, which takes 20 times as long
        has_header = any(message[name] for name in _KNOWN)
    except RecursionError as error:
        raise ValueError("its parts are nested too deeply") from error
    except _BROKEN as error:
        raise ValueError(f"it is not a readable e-mail ({type(error).__name__}: {error})") from error
    if not has_header:
        raise ValueError("it is not an e-mail (it has no header such as From, Date or Subject)")
    return message


def _parts(message: Message) -> Iterator[Message]:
    """Yield the innermost parts of a message; an attached message counts as one part."""
    pending = [message]
    count = 0
    while pending:
        part = pending.pop()
        count += 1
        if count > MAX_MEMBERS:
            raise ValueError(f"it has more than {MAX_MEMBERS:,} parts")
        payload = part.get_payload()
        if part.get_content_maintype() == "multipart" and isinstance(payload, list):
            pending.extend(each for each in reversed(payload) if isinstance(each, Message))
        else:
            yield part


def _bodies(message: Message) -> list[Message]:
    """Return the parts with the text of a message: plain text or HTML, and invitations.

    HTML is used if the plain text has less than half as many words. In many messages, the plain
    text is only a remark that the text is in HTML.
    """
    texts = [part for part in _parts(message) if part.get_content_maintype() == "text" and not _is_attachment(part)]
    invitations = [part for part in texts if part.get_content_subtype() == "calendar"]
    html = [part for part in texts if part.get_content_subtype() == "html"]
    plain = [part for part in texts if part not in [*html, *invitations] and _text(part).text.strip()]
    written = sum(len(_text(part).text.split()) for part in plain)
    shown = sum(len(_html(part, "").text.split()) for part in html) if plain else 0
    return (plain if plain and written >= _LEAST_SHARE * shown else html) + invitations


def _is_attachment(part: Message) -> bool:
    """Return whether a part is a file: it has a file name or is marked as an attachment."""
    try:
        return bool(part.get_filename()) or part.get_content_disposition() == "attachment"
    except _BROKEN:
        return False


def _attached_message(part: Message) -> bytes:
    payload = part.get_payload()
    message = payload[0] if isinstance(payload, list) and payload else None
    return message.as_bytes() if isinstance(message, Message) else b""


def _file_name(part: Message, number: int, ending: str) -> str:
    try:
        name = _decoded(part.get_filename())
    except _BROKEN:
        name = ""
    name = re.split(r"[/\\]", name)[-1].strip()
    name = name or f"attachment {number}"
    return name if "." in name else name + ending


def _bytes(part: Message) -> bytes:
    payload = part.get_payload(decode=True)
    return payload if isinstance(payload, bytes) else b""


def _text(part: Message) -> DecodedText:
    """Decode a part's text, interpret the name of its charset as browsers do, and join flowed lines."""
    try:
        decoded = decode_text(_bytes(part), part.get_content_charset() or "")
    except ValueError as error:
        return DecodedText("", (f"a part of its text was not read: {error}",))
    text = decoded.text.replace("\r\n", "\n")
    if str(part.get_param("format")).lower() == "flowed":
        text = unflowed(text, without_spaces=str(part.get_param("delsp")).lower() == "yes")
    return replace(decoded, text=text)


def _html(part: Message, source: str) -> Document:
    """Read an HTML part, with ``>`` before quoted lines.

    If the part's header names a charset, it is used instead of the charset in the HTML.
    """
    data = _BOM + _text(part).text.encode("utf-8", "replace") if part.get_content_charset() else _bytes(part)
    return read_html_document(data, source, quote_marks=True)


def _header(message: Message, name: str) -> str:
    raw = next((str(value) for key, value in message.raw_items() if key.lower() == name.lower()), "")
    # Headers may be UTF-8, which the parser keeps as escaped bytes.
    text = raw.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    try:
        return _decoded(text)
    except _BROKEN:
        return " ".join(text.split())


def _decoded(header: object) -> str:
    """Return the decoded text of a header, without line breaks."""
    return " ".join(str(make_header(decode_header(str(header or "")))).split())


def _date(header: str) -> str:
    """Return a date header in ISO 8601, or an empty string if it cannot be read."""
    try:
        return parsedate_to_datetime(header).isoformat()
    except (ValueError, TypeError, IndexError):
        return ""
