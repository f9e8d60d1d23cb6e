"""Scanned PDF files: pages that are pictures of text."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont

_FONT = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
_SIZE = 1240, 1754  # A4 at 150 dpi


def scanned_pdf(*pages: Sequence[str]) -> bytes:
    """Return a PDF file with a picture of these lines on each page."""
    font = ImageFont.truetype(str(_FONT), 26)
    images = []
    for lines in pages:
        image = Image.new("L", _SIZE, 255)
        draw = ImageDraw.Draw(image)
        for place, line in enumerate(lines):
            draw.text((120, 150 + 44 * place), line, fill=0, font=font)
        images.append(image)
    out = io.BytesIO()
    images[0].save(out, "PDF", save_all=True, append_images=images[1:], resolution=150)
    return out.getvalue()
