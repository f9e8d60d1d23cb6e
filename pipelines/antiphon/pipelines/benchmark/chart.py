"""Bar chart of speed-ups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SUFFIXES = (".png", ".svg")
GREEDY, BASELINE, OURS = "#8c8c8c", "#c8963c", "#2a6f97"


def check_chart(path: Path) -> None:
    """Raise if a chart cannot be drawn to this file; called before anything is measured.

    Raises:
        ValueError: the file name ends in neither .png nor .svg.
        ImportError: matplotlib is missing.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"The chart {path} has an unknown format; its name needs to end in {' or '.join(SUFFIXES)}.")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError("Charts need the package matplotlib; run: pip install 'antiphon[bench]'") from None


def draw(methods: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draw one bar per method whose length is its speed-up over greedy decoding.

    Args:
        methods: Figures of the methods, as `Speed.as_dict` returns them.
        path: File to write, PNG or SVG by its suffix.
        title: Title of the chart.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.2 + 0.42 * len(methods)), layout="constrained")
    axes = figure.subplots()
    names = [str(each["method"]) for each in methods]
    places = range(len(methods), 0, -1)
    bars = axes.barh(places, [each["speedup"] for each in methods], color=[_color(each) for each in methods])
    axes.bar_label(
        bars, [f"{each['speedup']:.2f}×  {each['tokens_per_s']:.1f} tokens/s" for each in methods], padding=4
    )
    axes.axvline(1, color=GREEDY, linewidth=1)
    axes.set_yticks(places, names)
    axes.set_xlim(0, 1.3 * max(each["speedup"] for each in methods))
    axes.set_xlabel("speed-up over transformers' greedy decoding, without prefill")
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def _color(figures: Mapping[str, Any]) -> str:
    return GREEDY if figures["method"] == "hf-greedy" else BASELINE if figures["is_baseline"] else OURS
