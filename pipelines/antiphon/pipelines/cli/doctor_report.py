"""Reports of `antiphon doctor`: one model's properties and costs, and the table of model families."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from antiphon.pipelines.cli import console
from antiphon.pipelines.rendering.sanitize import sanitize
from antiphon.pipelines.rendering.tables import property_card, result_table

if TYPE_CHECKING:
    from antiphon.accel.engines.torch.traits import RopeSwitch
    from antiphon.accel.memory_estimate import MemoryEstimate
    from antiphon.accel.testing.family_check import FamilyResult
    from antiphon.accel.testing.model_report import ModelReport

COMMAND = "antiphon doctor --families --markdown"
LEVELS = {
    "tree": "any draft: branches share one forward pass",
    "linear": "chains, by cropping the KV cache",
    "replay": "chains; if a draft is accepted in part, the accepted tokens are run again",
    "plain": "nothing: plain decoding",
}


def show_diagnosis(
    name: str, diagnosis: ModelReport, template: Mapping[str, str], memory: MemoryEstimate | None = None
) -> None:
    """Print the properties, measured costs and advice for one model.

    Args:
        template: What its chat template can express.
        memory: The estimate of its memory; None if unknown.
    """
    needed = {} if memory is None else {"memory": str(memory)}
    console.out.print(property_card(sanitize(name), diagnosis_facts(diagnosis) | needed))
    console.out.print(property_card("Chat template", {trait: sanitize(text) for trait, text in template.items()}))
    console.out.print(cost_table(diagnosis.cost.seconds))
    for advice in diagnosis.advice or ("Nothing to change.",):
        console.out.print(f"→ {advice}", markup=False)


def diagnosis_facts(diagnosis: ModelReport) -> dict[str, str]:
    """Return the properties of a model as text, by name."""
    positions, groups = diagnosis.max_positions, diagnosis.queries_per_key_head
    return {
        "level": f"{diagnosis.level} ({LEVELS[diagnosis.level]})",
        "because": diagnosis.reason,
        "engine": diagnosis.engine,
        "model": f"{diagnosis.model}, {diagnosis.parameters:,} parameters, {diagnosis.dtype} on {diagnosis.device}",
        "attention": f"{diagnosis.attention}; {diagnosis.mask}",
        "layers": "\n".join(str(kind) for kind in diagnosis.layers),
        "context": f"{positions:,} tokens" if positions else "its configuration sets no end",
        "rotary": _rope(diagnosis.rope),
        "heads": f"{groups} query heads to each key head" if groups else "keeps no keys",
        "packing": f"no: {packing}"
        if (packing := diagnosis.packing_reason)
        else "yes: their keys are read once, not copied",
        "drafter auto": diagnosis.auto_drafter,
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
    """Return a table of forward passes' costs by number of rows, in ms and relative to one row.

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


def try_families(names: Sequence[str] = ()) -> list[FamilyResult]:
    """Test tiny models of all families, or of the named ones, with a progress bar; sort by verification level.

    Raises:
        ValueError: a family is unknown.
    """
    from antiphon.accel.testing.families import ALL_FAMILIES
    from antiphon.accel.testing.family_check import check_family

    chosen = list(names or ALL_FAMILIES)
    trials = []
    with console.progress_bars() as report:
        for done, family in enumerate(chosen):
            report("Trying families", done, len(chosen))
            trials.append(check_family(family))
        report("Trying families", len(chosen), len(chosen))
    return sorted(trials, key=lambda trial: list(LEVELS).index(trial.traits.level))


def show_families(trials: Sequence[FamilyResult]) -> None:
    """Print the table of families."""
    console.out.print(family_table(trials))


def family_table(trials: Sequence[FamilyResult]) -> Table:
    """Return the table of families for the terminal, with the largest difference between logits."""
    names = ("family", "level", "greedy", "sampled", "logits", "steps", "openvino", "because")
    figures = [
        {
            "family": trial.family,
            "level": trial.traits.level,
            "greedy": _held(trial, "greedy"),
            "sampled": _held(trial, "sampled"),
            "logits": f"{trial.error:.0e}",
            "steps": _oracle_steps(trial),
            "openvino": _on_openvino(trial),
            "because": trial.traits.reason,
        }
        for trial in trials
    ]
    return result_table("", {name: name for name in names}, figures, is_open=True)


def families_markdown(trials: Sequence[FamilyResult]) -> str:
    """Return the page of families for the docs; if all tests pass, it is the same on every machine."""
    from antiphon.accel.testing.family_check import NEW_TOKENS, ORACLE_DEPTH, PROMPT_TOKENS, TOLERANCE

    lines = [
        HEAD.format(
            command=COMMAND,
            prompt=PROMPT_TOKENS,
            new=NEW_TOKENS,
            depth=ORACLE_DEPTH,
            tolerance=f"{TOLERANCE:.0e}".replace("e-0", "e-"),
            levels="\n".join(f"- **{level}**: {what}." for level, what in LEVELS.items()),
        ),
        "| family | level | layers | greedy | sampled | logits | steps | openvino | because |",
        "|---|---|---|---|---|---|---|---|---|",
        *map(_row, trials),
    ]
    return "\n".join(lines) + "\n"


HEAD = """\
# Model families

Which model families of transformers Antiphon decodes losslessly, and how. For one model run `antiphon doctor MODEL`.

This page is generated, and a test compares its families and levels with the code:

    {command} > docs/families.md

The command builds a tiny random model of every family from transformers' own code and decodes {new} tokens after a
prompt of {prompt} in float32 with drafts: random trees around the true tokens, the true tokens as a chain, and the
default drafter, both greedy and sampled from the same random state.

- *greedy*, *sampled*: whether the tokens equal those of `model.generate` and all logits equal plain decoding's.
- *logits*: bound on the difference of logits ({tolerance} passes; a wrong mask or position changes them by tenths).
- *steps*: forward passes for the {new} tokens if {depth} true tokens are drafted in each. If rotary frequencies change
  with the length (longrope, dynamic), no draft crosses the change.
- *openvino*: whether tokens and logits also agree if OpenVINO runs the model (x86 CPUs), compared with plain decoding
  in torch. Families that OpenVINO does not support stay on torch, and every loaded model is tested again. With sliding
  windows, trees are verified while sequence and draft fit into the smallest window.

What one forward pass can verify is determined for each loaded model, from the kinds of its layers and then numerically:

{levels}

A real model may have kinds of layers that its tiny version lacks; `antiphon doctor MODEL` tests the real one.
"""


def _row(trial: FamilyResult) -> str:
    from antiphon.accel.testing.family_check import TOLERANCE

    bound = f"< {TOLERANCE:.0e}".replace("e-0", "e-") if trial.error < TOLERANCE else f"{trial.error:.0e}"
    kinds = " + ".join(dict.fromkeys(trial.traits.layer_kinds)).replace("_attention", "")
    held = [_held(trial, mode) for mode in ("greedy", "sampled")]
    cells = [trial.family, trial.traits.level, kinds, *held, bound, str(_oracle_steps(trial)), _on_openvino(trial)]
    return f"| {' | '.join([*cells, trial.traits.reason])} |"


def _on_openvino(trial: FamilyResult) -> str:
    """Return whether OpenVINO runs the family, or why it stays on torch."""
    found = trial.openvino
    if found.reason:
        return "no" if found.reason == trial.traits.reason else f"no: {found.reason}"
    beyond = f"; chains beyond {found.window} tokens" if found.window else ""
    return f"same{beyond}" if found.passes else "differs"


def _held(trial: FamilyResult, mode: str) -> str:
    return "same" if trial.passes(mode) else "differs"


def _oracle_steps(trial: FamilyResult) -> int:
    return trial.results["greedy"]["oracle"].steps
