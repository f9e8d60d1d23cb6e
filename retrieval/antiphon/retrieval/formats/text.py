"""Decode the bytes of a text file, and replace what is not text."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

_BOMS = (  # UTF-32 before UTF-16, because its mark begins with the mark of UTF-16
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_WIDE = ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")
# For names of the WHATWG standard, Python's decoders of all characters that browsers decode.
_SUPERSETS = {
    "big5": "big5hkscs",
    "euc-kr": "cp949",
    "gbk": "gb18030",
    "iso-8859-8-i": "iso8859-8",
    "macintosh": "mac-roman",
    "shift_jis": "cp932",
    "windows-874": "cp874",
    "x-mac-cyrillic": "mac-cyrillic",
}
_DETECTED = (
    *("big5hkscs", "cp866", "cp874", "cp932", "cp949", "euc_jis_2004", "gb18030", "hz", "iso2022_jp_2"),
    *("koi8-r", "koi8-u", "mac-roman", "cp850", "cp852", *(f"cp{number}" for number in range(1250, 1259))),
    *(f"iso8859-{part}" for part in (1, 2, 5, 7, 13, 15)),
)
_NOT_DECODED = ("replacement", "x-user-defined")
_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[^\n]\x08")  # colours of a terminal, and overprinted characters
_REST_OF_PARAGRAPH = re.compile(r"[ \t]*\r?\n(?:[ \t]*\r?\n)*")
_STATEFUL = re.compile(rb"\x1b[$(]|~\{")  # ISO-2022 and HZ shift between character sets with ASCII bytes
_CONTROL = re.compile(rb"[\x00-\x07\x0e-\x1a\x1c-\x1f\x7f]")  # except those for terminals, which text files contain
_UNWANTED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_REPLACED = str.maketrans(
    dict.fromkeys(map(chr, (*range(32), *range(127, 160))), " ")
    | {each: each for each in "\t\n\r"}
    | dict.fromkeys("\v\f\x85", "\n")
)
_EMBEDDED = re.compile(  # data URIs, and other long runs of base64 or of bytes
    r"\bdata:[\w.+-]+/[\w.+-]+(?:;[\w.=+-]+)*(?:,|%2C)[^\s)\]\"'<>]*"
    r"|(?<![\w+/-])(?=[A-Z0-9+/_-]*[a-z])(?=[a-z0-9+/_-]*[A-Z])(?=[A-Za-z+/_-]*[0-9])"
    r"(?=[A-Za-z0-9+/_-]*?[A-Za-z0-9+]{30})[A-Za-z0-9+/_-]{256,}+={0,2}"  # not the words of a long address
    # at least three lines of base64, which may be literals of a program, and the last one
    r"|(?<![A-Za-z0-9+/])(?:(?=[A-Za-z+/]*\d)(?=[A-Z0-9+/]*[a-z])(?=[a-z0-9+/]*[A-Z])[A-Za-z0-9+/]{60,76}+"
    r"(?:[\"',]?[ \t]*\r?\n[ \t]*(?:b?[\"'])?|\\n)){3,}+"
    r"(?:[A-Za-z0-9+/]{1,76}+={0,2}(?=[\"')]|[ \t]*(?:\r?\n|\\|\Z)))?"
    r"|(?:0x[0-9A-Fa-f]{1,2},\s*+|\\x[0-9A-Fa-f]{2}){64,}"
)
_MAC_LINE_END = re.compile(r"\r(?!\n)")
_SAMPLE = 65536  # bytes that are examined to detect an encoding
_MOST_CONTROLS = 0.05
_MOST_DAMAGED = 0.1


@dataclass(frozen=True, slots=True)
class DecodedText:
    """The text of a file. ``warnings`` say how the encoding was guessed; empty if it was known."""

    text: str
    warnings: tuple[str, ...] = ()


def decode_text(data: bytes, declared: str = "") -> DecodedText:
    """Decode a file.

    The first encoding that fits is used: the encoding of the byte order mark, UTF-16 or UTF-32
    without a mark, UTF-8, the declared encoding, and the encoding that the bytes suggest. The text
    has no byte order mark, no escape sequences of terminals, no control characters and no embedded
    data, such as ``data:image/png;base64``.

    Args:
        declared: The label of the encoding that the file declares, such as ``iso-8859-1``. It is
            interpreted as browsers do.

    Raises:
        ValueError: The bytes are binary, or damaged in the encoding of their byte order mark.
    """
    text, warning = _decoded(data, declared)
    if "\x1b" in text or "\x08" in text:
        text = _ESCAPE_SEQUENCE.sub("", text)
    text = _MAC_LINE_END.sub("\n", text.replace("\ufeff", ""))
    text = _EMBEDDED.sub(lambda match: "\n" * match[0].count("\n"), without_controls(text))
    return DecodedText(text, (warning,) if warning else ())


def without_controls(text: str) -> str:
    """Replace control characters by spaces, form feeds by line ends; the length stays the same."""
    return text.translate(_REPLACED) if _UNWANTED.search(text) else text


def without_spans(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Remove spans from a text. If a span is a whole paragraph, the empty lines below it are removed, too.

    Args:
        spans: The start and the end of each span; they may overlap.
    """
    parts, position = [], 0
    for start, end in sorted(spans):
        if start > position:
            parts.append(text[position:start])
        below = _REST_OF_PARAGRAPH.match(text, end)
        before = text[max(position, start - 200) : start].rstrip(" \t")
        is_paragraph = before.endswith(("\n\n", "\r\n\r\n")) or before in ("", "\n", "\r\n")
        position = max(position, below.end() if below and is_paragraph else end)
    return "".join([*parts, text[position:]])


def looks_like_text(data: bytes) -> bool:
    """Return whether the beginning of a file is text in UTF-8, UTF-16, UTF-32 or a legacy encoding."""
    sample = data[:_SAMPLE]
    try:
        text = decode_text(sample[: sample.rfind(b"\n") + 1] or sample).text
    except ValueError:
        return False
    return bool(text.strip())


def _decoded(data: bytes, declared: str) -> tuple[str, str]:
    for mark, encoding in _BOMS:
        if data.startswith(mark) and not (encoding == "utf-32-le" and len(data) % 4):
            return _strict(data[len(mark) :], encoding), ""
    if wide := _wide_encoding(data):
        return data.decode(wide), f"read as {wide.upper()}, which its zero bytes suggest"
    label = _decoder(declared)
    if not (label and _STATEFUL.search(data)):
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            _require_text(data, error.start)
        else:
            _require_text(data, text.find("\0"), "a zero character at")
            if not (_STATEFUL.search(data) and data.isascii()):
                return text, ""
    if label:
        return data.decode(label, "replace"), ""
    found, warning = _detected(data)
    return found, f"it declares {declared!r}, an unknown encoding; {warning}" if declared and warning else warning


def _strict(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not {encoding.upper()} text (byte {error.start})") from error


def _require_text(data: bytes, position: int, at: str = "byte") -> None:
    if b"\0" in data or _has_many_controls(data[:_SAMPLE]):
        raise ValueError(f"it is binary ({at} {max(position, 0)})")


def _has_many_controls(sample: bytes) -> bool:
    return b"\0" in sample or len(_CONTROL.findall(sample)) > _MOST_CONTROLS * len(sample)


def _wide_encoding(data: bytes) -> str:
    """Return the encoding of UTF-16 or UTF-32 text without a byte order mark; empty for any other text."""
    sample = data[:_SAMPLE]
    if not _has_many_controls(sample):
        return ""
    is_ascii = sum(32 <= byte < 127 or byte in b"\0\t\r\n" for byte in sample) > 0.95 * len(sample)
    for encoding in _WIDE:
        width = 4 if "32" in encoding else 2
        try:
            text = sample[: len(sample) // width * width].decode(encoding)
        except UnicodeDecodeError:
            continue
        is_printable = all(character.isprintable() or character in "\t\r\n\f" for character in text)
        if is_printable and len(data) % width == 0 and (width == 4 or _is_one_script(text, 0.8 if is_ascii else 0.01)):
            return encoding
    return ""


def _is_one_script(text: str, ascii_share: float) -> bool:
    """Return whether the share of ASCII exceeds ``ascii_share``, or most characters are in one block of 256."""
    blocks = Counter(ord(character) >> 8 for character in text)
    [(_, most)] = blocks.most_common(1)
    return sum(map(str.isascii, text)) > ascii_share * len(text) or (ascii_share < 0.5 and most > 0.6 * len(text))


def _decoder(label: str) -> str:
    """Return the decoder for a label of the WHATWG standard; empty if browsers do not decode it."""
    if not label:
        return ""
    import webencodings

    found = webencodings.lookup(label)
    if found is None or found.name in _NOT_DECODED:
        return ""
    if found.name.startswith("utf-16"):
        return "utf-8"  # a declaration that can be read as ASCII is wrong about UTF-16
    return _SUPERSETS.get(found.name, found.codec_info.name)


def _detected(data: bytes) -> tuple[str, str]:
    """Return the text in the most likely encoding, and a sentence about the guess."""
    repaired = data.decode("utf-8", "replace")
    damaged, whole = repaired.count("\ufffd"), sum(character > "\x7f" for character in repaired[:_SAMPLE])
    if damaged < _MOST_DAMAGED * (whole - damaged):
        return repaired, f"{damaged} places are not valid UTF-8 and were replaced"
    import chardet

    found = chardet.detect(data, include_encodings=_DETECTED, compat_names=False)
    name, confidence = found["encoding"], found["confidence"]
    if not name:
        raise ValueError("it is binary (no text encoding fits)")
    text = data.decode(_decoder(name) or name, "replace")
    return text, f"its encoding was detected: {name} (confidence {confidence:.0%})"
