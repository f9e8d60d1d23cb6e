"""The page of model families in the docs, made from the results of the checks."""

from collections.abc import Sequence

from antiphon.pipelines.cli.doctor_report import LEVELS
from tests.families.check import NEW_TOKENS, ORACLE_DEPTH, PROMPT_TOKENS, TOLERANCE, FamilyResult
from tests.families.names import NAMES


def families_page(results: Sequence[FamilyResult]) -> str:
    """Return the page in Markdown; if all checks pass, it is the same on every machine."""
    lines = [
        HEAD.format(
            prompt=PROMPT_TOKENS,
            new=NEW_TOKENS,
            depth=ORACLE_DEPTH,
            tolerance=f"{TOLERANCE:.0e}".replace("e-0", "e-"),
            levels="\n".join(f"- **{level}**: {what}." for level, what in LEVELS.items()),
        ),
        "| family | models | level | layers | greedy | sampled | logits | steps | openvino | because |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *map(_row, results),
    ]
    return "\n".join(lines) + "\n"


HEAD = """\
# Model families

Which model families of transformers Antiphon decodes losslessly, and how. Search this page for the name of a model: the
column *models* has the best known ones of each family, and of multimodal ones the text model is what counts. For one
model run `antiphon doctor MODEL`.

This page is generated, and a test compares its families and levels with the code:

    python -m tests.families > docs/families.md

The command builds a tiny random model of every family from transformers' own code and decodes {new} tokens after a
prompt of {prompt} in float32 with drafts: random trees around the true tokens, the true tokens as a chain, and the
default drafter, both greedy and sampled from the same random state.

- *greedy*, *sampled*: whether the tokens equal those of `model.generate` and all logits equal plain decoding's.
- *logits*: bound on the difference of logits ({tolerance} passes; a wrong mask or position changes them by tenths).
- *steps*: forward passes for the {new} tokens if {depth} true tokens are drafted in each. If rotary frequencies change
  with the length (longrope, dynamic), no draft crosses the change.
- *openvino*: whether tokens and logits also agree if OpenVINO runs the model (x86 CPUs), compared with plain decoding
  in torch. Families that OpenVINO does not support stay on torch, and every loaded model is tested again. With sliding
  windows, trees are verified while sequence and draft fit into the smallest window. If rotary frequencies change with
  the length, longer requests run on torch.

What one forward pass can verify is determined for each loaded model, from the kinds of its layers and then numerically:

{levels}

A real model may have kinds of layers that its tiny version lacks; `antiphon doctor MODEL` tests the real one.
"""


def _row(result: FamilyResult) -> str:
    bound = f"< {TOLERANCE:.0e}".replace("e-0", "e-") if result.error < TOLERANCE else f"{result.error:.0e}"
    kinds = " + ".join(dict.fromkeys(result.traits.layer_kinds)).replace("_attention", "")
    held = [_held(result, mode) for mode in ("greedy", "sampled")]
    cells = [result.family, NAMES[result.family], result.traits.level, kinds, *held, bound, str(_oracle_steps(result))]
    return f"| {' | '.join([*cells, _on_openvino(result), result.traits.reason])} |"


def _on_openvino(result: FamilyResult) -> str:
    """Return whether OpenVINO runs the family, or why it stays on torch."""
    found = result.openvino
    if found.reason:
        return "no" if found.reason == result.traits.reason else f"no: {found.reason}"
    beyond = f"; chains beyond {found.window} tokens" if found.window else ""
    beyond += f"; torch beyond {found.switch} tokens" if found.switch else ""
    return f"same{beyond}" if found.passes else "differs"


def _held(result: FamilyResult, mode: str) -> str:
    return "same" if result.passes(mode) else "differs"


def _oracle_steps(result: FamilyResult) -> int:
    return result.results["greedy"]["oracle"].steps
