"""Command-line options shared by several commands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

DEFAULT_MODEL = "reader"
EXTRACTIVE = "extractive"
"""Name of the model that quotes without a language model, see `extractive_model`."""

ASKED_MODEL = EXTRACTIVE
"""The default of `ask` and `chat`: sentences of the documents are quoted, without a language model."""

MODEL_HELP = (
    "reader, smollm2, a folder (of a model, or of an adapter for smollm2), a GGUF file or a hub name; or a model on a "
    "server: ollama/NAME, lmstudio/NAME, vllm/NAME, llamacpp/NAME, or an address such as http://host:8000/v1#NAME."
)
ASKED_HELP = (
    f"extractive: quotes the documents without a language model; or a language model, which writes the answer: "
    f"{MODEL_HELP}"
)
SERVED_HELP = (
    f"{MODEL_HELP[:-1]}; or extractive. With reader and extractive, answers from documents are quoted without a "
    "language model, and no other texts are written."
)
MODEL_VARIABLE = "ANTIPHON_MODEL"
"""Environment variable with the default of --model."""

AskedModel = Annotated[str, typer.Option("--model", "-m", envvar=MODEL_VARIABLE, help=ASKED_HELP)]
LARGER = (
    "Larger models answer better: Qwen/Qwen3-4B-Instruct-2507 (8 GB of memory in bfloat16), Qwen/Qwen3-8B "
    "(17 GB), or any instruct model of the hub: --model NAME"
)
"""Advice shown for a bundled model; we have not measured these public models."""

Drafter = Annotated[
    str,
    typer.Option(
        help="Drafter: blend, trie, copying, recycling, lookahead, nothing; bita: BiTA's mask tokens alone; auto: "
        "chosen for the model, with the reason."
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of a table.")]
Bita = Annotated[
    str | None,
    typer.Option(
        help="A file of BiTA's weights for this model, or smollm2 for the bundled one; for --drafter blend or bita."
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, mps, ...; default: a GPU if there is one.")]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine", help="Engine that runs the model: torch, openvino, or auto: the faster one if outputs agree."
    ),
]
FewBits = Annotated[
    str | None,
    typer.Option(
        "--weights",
        help="int8 or int4: quantize the weights for OpenVINO, which changes outputs (extra int8).",
        show_default="not quantized",
    ),
]
Index = Annotated[
    str | None,
    typer.Option(
        "--index",
        "-i",
        help="Folder of an index, made by `antiphon index`, or the address of a table of PostgreSQL.",
        show_default=".antiphon here or in a folder above",
    ),
]
Paths = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Files and folders to answer from; what is new or changed is indexed first.", show_default="the index"
    ),
]
Limit = Annotated[int | None, typer.Option(help="Maximum number of samples.")]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(
        help="Maximum number of new tokens per answer.",
        show_default="1024; 256 for models that quote or have fewer than 400 million parameters",
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="Stop before this text; may be repeated.", show_default="a blank line for smollm2"),
]
Drafting = Annotated[bool, typer.Option("--drafting", help="Print the answer again, step by step as it was decoded.")]
Thinking = Annotated[
    bool | None,
    typer.Option(
        "--thinking/--no-thinking", help="Let the model think before it answers, if its chat template has a switch."
    ),
]
MaxThinkingTokens = Annotated[
    int | None, typer.Option(help="Maximum number of tokens of the thinking, before those of the answer.")
]
Precision = Annotated[str, typer.Option(help="Dtype of the model: auto, float32, bfloat16 or float16.")]
NumDraftTokens = Annotated[
    int | None, typer.Option(help="Maximum number of draft tokens per step.", show_default="chosen by cost")
]
PromptFile = Annotated[
    Path | None,
    typer.Option(
        "--prompt",
        help="Text file of the prompt, with {passages} and {question}; for models that write.",
        exists=True,
        dir_okay=False,
        show_default="chosen by model",
    ),
]
Quote = Annotated[
    bool, typer.Option("--quote/--no-quote", help="Show the best quote while a language model reads the passages.")
]
Sessions = Annotated[
    Path | None,
    typer.Option(help="File of earlier answers to draft from; created if missing. Each answer is added to it."),
]
Trace = Annotated[
    str,
    typer.Option(
        "--trace",
        envvar="OTEL_TRACES_EXPORTER",
        help='Where to export traces: "otlp" (a collector), "console" (standard error) or "none".',
    ),
]
Task = Annotated[str | None, typer.Option(help="Use samples of this task only.")]
Window = Annotated[
    str | None,
    typer.Option(
        "--lookahead",
        help="Lookahead's window: columns, n-gram and guesses, such as 5,3,5; for --drafter blend or lookahead.",
    ),
]


Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="FIELD=VALUE",
        help="Search only passages whose metadata have this value, such as lang=de or source=notes/keys.md; a value of "
        'JSON is a number, true, false, null or a "text". Or a whole filter in JSON. If repeated, all must match.',
    ),
]


def where_filter(given: Sequence[str] | None) -> dict[str, Any] | None:
    """Parse the values of the option; return the filter, or None if there are none.

    Raises:
        ValueError: a value has no "=", is invalid JSON, or has an unknown operator.
        TypeError: the value of an operator has the wrong type.
    """
    from antiphon.retrieval.filters import parse_filter

    parts = [_part(each) for each in given or ()]
    if not parts:
        return None
    where = parts[0] if len(parts) == 1 else {"$and": parts}
    parse_filter(where)
    return where


def _part(given: str) -> dict[str, Any]:
    if given.lstrip().startswith("{"):
        try:
            return dict(json.loads(given))
        except ValueError as error:
            raise ValueError(f"--where {given!r} is not valid JSON: {error}.") from error
    name, equals, value = given.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"--where is {given!r}; give FIELD=VALUE, such as lang=de, or a filter in JSON.")
    return {name.strip(): _value(value)}


def _value(given: str) -> Any:
    """Parse a JSON number, boolean, null or string; return anything else as text."""
    try:
        value = json.loads(given, parse_constant=lambda _: given)
    except ValueError:
        return given
    return given if isinstance(value, dict | list) else value
