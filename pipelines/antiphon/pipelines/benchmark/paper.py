"""A small PDF as papers are set: one column of justified lines, words cut at line ends, tables, page numbers.

Writes what the benchmark's paper was made with; knows nothing of how a PDF is read.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

_WIDTH, _LINES = 86, 58  # characters of a line, lines of a page
_SIZES = {"T": 14, "A": 10, "H": 12, "P": 10, "C": 9, "R": 9}
_LEADING = 12


def paper(marked: str) -> bytes:
    """A PDF of lines that begin with what they are: T title, A authors, H heading, P paragraph, C caption, R row."""
    lines = list(_lines(marked.splitlines()))
    pages = [lines[first : first + _LINES] for first in range(0, len(lines), _LINES)]
    title = next(line[2:] for line in marked.splitlines() if line.startswith("T|"))
    return _file([_content(page, number) for number, page in enumerate(pages, 1)], title)


def _lines(marked: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each printed line with its kind; headings and tables have room around them."""
    for line in marked:
        kind, _, text = line.partition("|")
        if kind in "TAHC":
            yield kind, ""
        if kind == "R":
            yield kind, "   ".join(cell.strip() for cell in text.split(" | "))
        else:
            yield from ((kind, part) for part in _hyphenated(text))


def _hyphenated(text: str) -> Iterator[str]:
    """Lines of a paragraph; where much room is left, a long word is cut with a hyphen."""
    words, line = text.split(), ""
    for word in words:
        room = _WIDTH - len(line) - 1
        if len(word) <= room:
            line = f"{line} {word}".strip()
        elif room > 6 and len(word) > 9 and word.isalpha():
            at = min(room - 2, len(word) - 4)
            yield f"{line} {word[:at]}-".strip()
            line = word[at:]
        else:
            yield line
            line = word
    yield line


def _content(page: Sequence[tuple[str, str]], number: int) -> bytes:
    drawn = [f"BT /F1 10 Tf {_LEADING} TL 60 770 Td"]
    for kind, text in page:
        font = "F2" if kind in "TH" else "F1"
        drawn.append(f"/{font} {_SIZES[kind]} Tf ({_escaped(text)}) Tj T*")
    return "\n".join([*drawn, f"ET BT /F1 9 Tf 290 30 Td ({number}) Tj ET"]).encode("latin-1")


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")


def _file(contents: Sequence[bytes], title: str) -> bytes:
    count = len(contents)
    kids = " ".join(f"{6 + 2 * number} 0 R" for number in range(count))
    font = "<< /Type /Font /Subtype /Type1 /BaseFont /{} /Encoding /WinAnsiEncoding >>"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Count {count} /Kids [{kids}] >>".encode(),
        font.format("Times-Roman").encode(),
        font.format("Times-Bold").encode(),
        f"<< /Title ({_escaped(title)}) >>".encode("latin-1"),
    ]
    for number, content in enumerate(contents):
        packed = zlib.compress(content, 9)
        resources = "<< /Font << /F1 3 0 R /F2 4 0 R >> >>"
        box = "/Type /Page /Parent 2 0 R /MediaBox [0 0 595 842]"
        objects.append(f"<< {box} /Resources {resources} /Contents {7 + 2 * number} 0 R >>".encode())
        head = f"<< /Length {len(packed)} /Filter /FlateDecode >>\nstream\n".encode()
        objects.append(head + packed + b"\nendstream")
    return _joined(objects)


def _joined(objects: Sequence[bytes]) -> bytes:
    data, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += f"{number} 0 obj\n".encode() + body + b"\nendobj\n"
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    end = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R /Info 5 0 R >>\nstartxref\n{len(data)}\n%%EOF\n"
    return data + f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}".encode() + end.encode()
