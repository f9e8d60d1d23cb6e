"""Small PDF files for tests: text at given places, images, form fields, damaged parts."""

from collections.abc import Iterable, Sequence

Text = tuple[float, float, float, str]
"""The left, the baseline and the size of a text in points, and the text. A page has 612 by 792 points."""

FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"


def pdf_of(objects: Sequence[bytes]) -> bytes:
    """A PDF file of these objects, the first of which is the catalog."""
    out = bytearray(b"%PDF-1.7\n")
    places = []
    for number, content in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    return bytes(out + b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, table))


def stream(content: bytes, entries: bytes = b"") -> bytes:
    return b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(content), entries, content)


def shown(texts: Iterable[Text], matrix: str = "1 0 0 1") -> bytes:
    """The content of a page with these texts."""
    parts = []
    for x, y, size, text in texts:
        string = text.encode("cp1252").replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)")
        parts.append(f"BT /F1 {size} Tf {matrix} {x} {y} Tm (".encode() + string + b") Tj ET")
    return b"\n".join(parts)


def pages_of(*contents: bytes, catalog: bytes = b"", page: bytes = b"", more: Sequence[bytes] = ()) -> bytes:
    """A PDF with one page for each content; ``more`` are the objects from number 4 on."""
    objects = [b"", b"", FONT, *more]
    kids = []
    for content in contents:
        objects.append(content if content.startswith(b"<<") else stream(content))
        resources = b"/Resources << /Font << /F1 3 0 R >> /XObject << /Im 4 0 R >> >>"
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R %s %s >>"
            % (len(objects), resources, page)
        )
        kids.append(b"%d 0 R" % len(objects))
    objects[0] = b"<< /Type /Catalog /Pages 2 0 R %s >>" % catalog
    objects[1] = b"<< /Type /Pages /Kids [%s] /Count %d >>" % (b" ".join(kids), len(kids))
    return pdf_of(objects)


def lines(*texts: str, left: float = 72, top: float = 700, pitch: float = 14, size: float = 10) -> list[Text]:
    """Texts below each other."""
    return [(left, top - pitch * row, size, text) for row, text in enumerate(texts)]
