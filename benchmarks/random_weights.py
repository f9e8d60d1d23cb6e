"""Models that benchmarks run on: models by name, and random weights of a given architecture, which are not stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.accel.models.bundled import BUNDLED, resolve_model
from benchmarks.shapes import ARCHITECTURES, random_model

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel

ModelOrArchitecture = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="reader, smollm2, a folder, a hub name, or an architecture with random weights: "
        f"{', '.join(ARCHITECTURES)}.",
    ),
]
TokenizerName = Annotated[
    str | None,
    typer.Option("--tokenizer", help="For random weights: a folder or hub name.", show_default="SmolLM2's"),
]


def load_tokenizer(name: str) -> Any:
    """Load a tokenizer by its folder, its hub name, or the name of a bundled model.

    Raises:
        ValueError: no tokenizer can be loaded.
    """
    from transformers import AutoTokenizer

    place = resolve_model(name) if name in BUNDLED else name
    try:
        return AutoTokenizer.from_pretrained(place)
    except (OSError, ValueError) as error:
        raise ValueError(f"No tokenizer can be loaded from {name}; give its folder or its name on the hub.") from error


def load_model_or_random(
    name: str, *, tokenizer: str | None = None, device: str | None = None, dtype: Any = "auto"
) -> LanguageModel:
    """Load a model by name, or build one with random weights if the name is an architecture.

    Args:
        name: Model name or architecture.
        tokenizer: Tokenizer of an architecture; default SmolLM2's.
        device: Device name; default a GPU if there is one.
        dtype: A torch dtype, or "auto".

    Raises:
        ValueError: the model, device or tokenizer does not exist, the tokenizer has too many tokens, or a tokenizer is
            given for a model that has its own.
    """
    from antiphon.pipelines.cli.preparation import load_language_model

    if name in ARCHITECTURES:
        return _random_language_model(name, load_tokenizer(tokenizer or "smollm2"), device, dtype)
    if tokenizer is not None:
        names = ", ".join(ARCHITECTURES)
        raise ValueError(f"{name} has a tokenizer of its own; --tokenizer is for random weights only: {names}.")
    return load_language_model(name, device=device, dtype=dtype)


def _random_language_model(name: str, tokenizer: Any, device: str | None, dtype: Any) -> LanguageModel:
    import torch

    from antiphon.accel import LanguageModel
    from antiphon.accel.engines.torch.loading import choose_device, choose_dtype

    room = ARCHITECTURES[name]["vocab_size"]
    if len(tokenizer) > room:
        raise ValueError(
            f"The tokenizer has {len(tokenizer):,} tokens and the architecture {name!r} has room for {room:,}; give "
            "the folder or hub name of one that fits: --tokenizer."
        )
    place = choose_device(device)
    if dtype == "auto":
        chosen = choose_dtype(torch.bfloat16, place)
        dtype = torch.bfloat16 if chosen == "auto" else chosen
    return LanguageModel(random_model(name, tokenizer, dtype=dtype, device=place), tokenizer, name=name)
