"""Recognize the text of scanned pages with RapidOCR (extra ``ocr``), whose package contains the models."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from statistics import fmean
from typing import TYPE_CHECKING, Any

from antiphon.accel.progress import Progress, ignore_progress
from antiphon.retrieval.formats.pdf_layout import Line

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument

STAGE = "ocr"
"""The stage of `Progress` in which scanned pages are recognized."""

_LONGEST_SIDE = 2000  # pixels of a page; RapidOCR makes larger pages smaller
_report: ContextVar[Progress] = ContextVar("report", default=ignore_progress)


@dataclass(frozen=True, slots=True)
class RecognizedPage:
    """The lines of a scanned page, and the mean confidence of their recognition, from 0 to 1."""

    lines: list[Line]
    confidence: float


def is_installed() -> bool:
    """Return whether scanned pages can be recognized."""
    return find_spec("rapidocr") is not None


@contextlib.contextmanager
def reporting(progress: Progress) -> Iterator[None]:
    """Call ``progress`` with the stage `STAGE` for each page that is recognized in the context."""
    token = _report.set(progress)
    try:
        yield
    finally:
        _report.reset(token)


def recognize_pages(pdf: PdfDocument, numbers: Sequence[int]) -> Iterator[tuple[int, RecognizedPage]]:
    """Yield the number and the text of each page; a page without text has no lines.

    Args:
        numbers: The numbers of the pages, from 1.
    """
    report = _report.get()
    for done, number in enumerate(numbers):
        report(STAGE, done, len(numbers))
        yield number, _recognized(pdf, number)
    report(STAGE, len(numbers), len(numbers))


def _recognized(pdf: PdfDocument, number: int) -> RecognizedPage:
    page = pdf[number - 1]
    try:
        scale = _LONGEST_SIDE / max(page.get_width(), page.get_height(), 1.0)
        image = page.render(scale=scale, draw_annots=False).to_pil().convert("RGB")
    except (RuntimeError, ValueError):  # PDFium cannot draw the page; the others are read
        return RecognizedPage([], 0.0)
    finally:
        page.close()
    width, height = image.size
    found = _engine()(image)
    if found.boxes is None or not found.txts:
        return RecognizedPage([], 0.0)
    lines = []
    for text, box in zip(found.txts, found.boxes.tolist(), strict=True):
        xs, ys = zip(*box, strict=True)
        lines.append(Line(text, min(xs) / width, 1 - max(ys) / height, max(xs) / width, 1 - min(ys) / height))
    return RecognizedPage(lines, fmean(found.scores))


@cache
def _engine() -> Any:
    """Return the recognizer; it runs on OpenVINO if that is installed, else on ONNX Runtime."""
    from rapidocr import EngineType, RapidOCR

    engine = EngineType("openvino" if find_spec("openvino") is not None else "onnxruntime")
    parts = {f"{part}.engine_type": engine for part in ("Det", "Cls", "Rec")}
    return RapidOCR(params={**parts, "Global.log_level": "critical"})
