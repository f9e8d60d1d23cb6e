"""Options that several commands take: the same name, the same words of help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_MODEL = "reader"
MODEL_HELP = "reader, smollm2, a folder (of a model, or of an adapter for smollm2) or a hub name."
ASKED_HELP = f"{MODEL_HELP[:-1]}; or a server's address, such as http://host:8000/v1."
LARGER = (
    "Larger models answer more, and better: Qwen/Qwen3-4B-Instruct-2507 (8 GB of memory in bfloat16), Qwen/Qwen3-8B "
    "(17 GB), or any instruct model of the hub: --model NAME"
)
"""What to take instead of the embedded models, for those who ask about one; public models, not measured here."""

DRAFTER_HELP = (
    "Who drafts: blend, trie, copying, recycling, lookahead, nothing; bita: its mask tokens alone; auto: what suits "
    "the model here, with the reason."
)

AsJson = Annotated[bool, typer.Option("--json", help="End with one line of JSON instead of a table.")]
Bita = Annotated[
    str | None,
    typer.Option(help="A file of BiTA's weights for this model, or smollm2 for its own: with blend, or alone as bita."),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, mps, ...; by default a GPU where there is one.")]
EngineOption = Annotated[
    str,
    typer.Option("--engine", help="Who runs the model: torch, openvino, or auto: the faster that says the same."),
]
FewBits = Annotated[
    str | None,
    typer.Option(
        "--weights",
        help="int8 or int4: run weights of so many bits by OpenVINO, which is another model (extra int8).",
        show_default="as they are",
    ),
]
Index = Annotated[Path, typer.Option("--index", "-i", help="The folder that `antiphon index` made.")]
Limit = Annotated[int | None, typer.Option(help="Only so many samples.")]
MaxNewTokens = Annotated[int, typer.Option(help="The longest answer, in tokens.")]
Precision = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
NumDraftTokens = Annotated[
    int | None, typer.Option(help="Draft rows that are verified in one step, at most.", show_default="those that pay")
]
Sessions = Annotated[
    Path | None,
    typer.Option(help="A file of earlier answers to draft from, made if it is not there; each answer is added to it."),
]
Task = Annotated[str | None, typer.Option(help="Only the samples of this task.")]
Window = Annotated[
    str | None,
    typer.Option("--lookahead", help="Lookahead's window, with blend or alone: columns, n-gram and guesses, as 5,3,5."),
]
