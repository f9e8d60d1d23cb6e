"""The report of `antiphon doctor`: a model's properties, costs and advice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.table import Table

from antiphon.pipelines.cli import console
from antiphon.pipelines.rendering.sanitize import sanitize
from antiphon.pipelines.rendering.tables import property_card, result_table

if TYPE_CHECKING:
    from antiphon.accel import RemoteLanguageModel
    from antiphon.accel.engines.torch.traits import RopeSwitch
    from antiphon.accel.memory_estimate import MemoryEstimate
    from antiphon.accel.model_report import ModelReport

PROBE = "Count from one to twenty in words."
DRAFTS_ITSELF = "the server does not draft from references; vLLM does with Antiphon's plug-in"

MACHINE_COLUMNS = {"model": "model", "memory_gb": "GB", "tokens_per_s": "tokens/s, about", "engine": "engine"}

LEVELS = {
    "tree": "any draft: branches share one forward pass",
    "linear": "chains, by cropping the KV cache",
    "replay": "chains; if a draft is accepted in part, the accepted tokens are run again",
    "plain": "nothing: plain decoding",
}


def show_machine(*, as_json: bool) -> None:
    """Print the models that fit this machine with their estimated speeds, the local servers, and missing packages."""
    from antiphon.pipelines.models.suggestions import examine_machine

    with console.err.status("Measuring how fast memory is read"):
        found = examine_machine()
    if as_json:
        console.out.print(json.dumps(found), markup=False, soft_wrap=True)
        return
    caption = (
        f"{found['memory_gb']} GB of memory are available and read at {found['bandwidth_gb_per_s']} GB/s. Plain "
        f"decoding reads all weights for each token, here in {found['precision']}; drafts come on top."
    )
    caption += " These are speeds of the CPU; the GPU is faster." if found["gpu"] else ""
    rows = [{name: str(value) for name, value in model.items()} for model in found["models"]]
    if rows:
        console.out.print(result_table("Models that fit this machine", MACHINE_COLUMNS, rows, is_open=True))
        console.out.print(caption)
    else:
        console.out.print(f"{caption} No model of the hub that we know fits; a server may have one.")
    for kind, names in found["servers"].items():
        console.out.print(f"→ {kind} answers here: --model {kind}/{sanitize(names[0])}", markup=False)
    for text in found["install"]:
        console.out.print(f"→ Not installed: {text}", markup=False)
    first = rows[0]["model"] if rows else "NAME"
    console.out.print(f"→ antiphon ask QUESTION FOLDER --model {first}", markup=False)
    console.out.print(f"→ antiphon doctor {first} examines one model; it is downloaded for that.", markup=False)


def show_server(remote: RemoteLanguageModel, *, as_json: bool) -> None:
    """Print the properties of a model on a server, and its speed in a short answer."""
    server = remote.server
    with console.err.status("Asking the server for a short answer"):
        steps = remote.generate([{"role": "user", "content": PROBE}], max_new_tokens=64, thinking=False).steps
    facts = {
        "server": f"{server.kind} at {server.base_url}",
        "context": f"{server.context_window:,} tokens" if server.context_window else "not reported by the server",
        "thinking": {None: "unknown", True: "yes; turned off for answers from documents", False: "no"}[server.thinks],
        "drafts": "from the passages of each question" if remote.drafts_from_references() else DRAFTS_ITSELF,
        "first token": f"{steps.prefill_seconds:.2f} s",
        "speed": f"{steps.tokens / max(steps.seconds - steps.prefill_seconds, 1e-3):.1f} tokens/s",
        "other models": ", ".join(server.others) or "none",
    }
    if as_json:
        console.out.print(json.dumps({"name": server.name} | facts), markup=False, soft_wrap=True)
    else:
        console.out.print(property_card(sanitize(server.name), {name: sanitize(fact) for name, fact in facts.items()}))


def show_diagnosis(
    name: str, diagnosis: ModelReport, template: Mapping[str, str], memory: MemoryEstimate | None = None
) -> None:
    """Print the properties, measured costs and advice for one model.

    Args:
        memory: The estimated memory that the model needs; None if unknown.
    """
    needed = {} if memory is None else {"memory": str(memory)}
    console.out.print(property_card(sanitize(name), diagnosis_facts(diagnosis) | needed))
    console.out.print(property_card("Chat template", {trait: sanitize(text) for trait, text in template.items()}))
    console.out.print(cost_table(diagnosis.cost.seconds))
    for advice in diagnosis.advice or ("Nothing to change.",):
        console.out.print(f"→ {advice}", markup=False)


def diagnosis_facts(diagnosis: ModelReport) -> dict[str, str]:
    """Return the properties of a model as text, by name."""
    positions = diagnosis.max_positions
    return {
        "level": f"{diagnosis.level} ({LEVELS[diagnosis.level]})",
        "because": diagnosis.reason,
        "engine": diagnosis.engine,
        "model": f"{diagnosis.model}, {diagnosis.parameters:,} parameters, {diagnosis.dtype} on {diagnosis.device}",
        "attention": f"{diagnosis.attention}; {diagnosis.mask}",
        "layers": "\n".join(str(kind) for kind in diagnosis.layers),
        "context": f"{positions:,} tokens" if positions else "its configuration sets no end",
        "rotary": _rope(diagnosis.rope),
        "packing": f"no: {packing}"
        if (packing := diagnosis.packing_reason)
        else "yes: their keys are read once, not copied",
        "drafter auto": diagnosis.auto_drafter,
        "draft head": diagnosis.draft_head,
        "compiling": f"no: {why}"
        if (why := diagnosis.compiling_reason)
        else "yes: steps of fixed shapes, by itself on a GPU",
    }


def _rope(rope: RopeSwitch | None) -> str:
    if rope is None:
        return "the same frequencies at every length"
    if rope.dynamic:
        return f"frequencies change with every token from {rope.position:,} on: no draft goes there"
    rebuilds = "; the cache is rebuilt there, once" if rope.rebuilds else ""
    return f"frequencies change at {rope.position:,} tokens: no draft reaches over it{rebuilds}"


def cost_table(measured: Mapping[int, Mapping[int, float]]) -> Table:
    """Return a table of the cost of a forward pass by number of rows, in ms and relative to one row.

    Args:
        measured: Seconds of a forward pass, by context length and number of rows.
    """
    contexts = " and ".join(f"{context:,}" for context in measured)
    columns = {"rows": "rows"}
    for context in measured:
        columns |= {f"{context} ms": "ms", f"{context} plain": "plain steps"}
    figures = []
    for rows in sorted({count for row in measured.values() for count in row}):
        figure: dict[str, int | str] = {"rows": rows}
        for context, row in measured.items():
            figure[f"{context} ms"] = f"{1000 * row[rows]:.2f}" if rows in row else ""
            figure[f"{context} plain"] = f"{row[rows] / row[1]:.2f}" if rows in row else ""
        figures.append(figure)
    caption = "A draft is worth its cost if it yields more tokens than its forward pass costs plain steps."
    return result_table(f"One forward after {contexts} tokens", columns, figures, is_open=True, caption=caption)
