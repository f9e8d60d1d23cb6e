"""The command `antiphon doctor`: reports what a model supports, or which models fit this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from antiphon.accel.models.bundled import BUNDLED
from antiphon.accel.remote.server import is_address
from antiphon.pipelines.cli import console, options
from antiphon.pipelines.cli.preparation import check_model, connect, load_language_model


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(
            envvar=options.MODEL_VARIABLE, help=options.MODEL_HELP, show_default="none: examine the machine"
        ),
    ] = None,
    device: options.Device = None,
    engine: options.EngineOption = "auto",
    weights: options.FewBits = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of a table.")] = False,
) -> None:
    """Report which models fit this machine; with a model, what it can verify, what it costs, and what would help."""
    if model is None:
        from antiphon.pipelines.cli.doctor_report import show_machine

        show_machine(as_json=as_json)
        return
    if is_address(model):
        from antiphon.pipelines.cli.doctor_report import show_server

        show_server(connect(model), as_json=as_json)
        return
    if model != options.EXTRACTIVE:
        check_model(model, device=device, engine=engine, weights=weights)
    from antiphon.accel.memory_estimate import estimate_memory
    from antiphon.accel.model_report import inspect_model
    from antiphon.accel.text.template_check import describe_traits
    from antiphon.pipelines.cli.doctor_report import show_diagnosis

    loaded = load_language_model(model, device=device, engine=engine, weights=weights)
    with console.err.status("Examining"):
        diagnosis = inspect_model(loaded.model, engine=loaded.options.engine_choice)
    name, precision = loaded.engine.name, weights or diagnosis.dtype
    is_on_cpu = diagnosis.device == "cpu"
    place = loaded.model.config.name_or_path or loaded.name
    memory = estimate_memory(place, engine=name, precision=precision) if is_on_cpu else None
    template = describe_traits(loaded.tokenizer)
    if as_json:
        known = {} if memory is None else {"memory": asdict(memory) | {"total": memory.total}}
        typer.echo(json.dumps({"name": model} | diagnosis.as_dict() | known | {"template": template}))
        return
    show_diagnosis(model, diagnosis, template, memory)
    if model in BUNDLED:
        console.out.print(f"→ {options.LARGER}", markup=False)
