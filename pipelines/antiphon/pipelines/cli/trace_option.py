"""The option `--trace` of the commands that answer questions."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from antiphon.pipelines.cli import console

Trace = Annotated[
    str | None,
    typer.Option(
        "--trace",
        help='Where to export traces: "otlp" (a collector), "console" (standard error) or "none".',
        show_default="as OTEL_TRACES_EXPORTER or OTEL_EXPORTER_OTLP_ENDPOINT say",
    ),
]

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def start_traces(option: str | None) -> None:
    """Export traces if the option or OpenTelemetry's environment variables ask for it.

    A variable may be set for other programs, so without the packages it only causes a note.

    Args:
        option: "otlp", "console", "none", or None for what the environment says.

    Raises:
        ValueError: there is no such exporter.
        ImportError: the option asks for it, and OpenTelemetry's SDK is not installed.
    """
    exporter = _exporter_of_environment() if option is None else option
    if exporter == "none":
        return
    from antiphon.pipelines.tracing import current_tracer

    if option is None and current_tracer() is not None:
        return  # the program was started by opentelemetry-instrument
    try:
        from antiphon.pipelines.trace_export import export_traces
    except ImportError as error:
        if option is not None:
            raise
        console.err.print(f"No traces are exported: {error}", style="dim", markup=False)
        return
    export_traces(exporter)


def _exporter_of_environment() -> str:
    """Return the exporter that the environment names; "otlp" if it only names a collector, "none" if neither."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return "none"
    default = "otlp" if any(os.environ.get(name) for name in _ENDPOINTS) else "none"
    return os.environ.get("OTEL_TRACES_EXPORTER") or default
