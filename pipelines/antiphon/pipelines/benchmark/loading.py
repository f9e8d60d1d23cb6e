"""What a benchmark runs on: a model that is named, or only its shape, and tokenizers. Measures nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from antiphon.pipelines.benchmark.replay import Tokenizer
from antiphon.pipelines.benchmark.shapes import SHAPES, shaped
from antiphon.pipelines.models.embedded import EMBEDDED, resolve_model

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel


class ModelLoader(Protocol):
    """Loads a language model by its name, and shows progress as it likes."""

    def __call__(self, name: str, *, device: str | None, dtype: Any) -> LanguageModel:
        """The model that a user called ``name``."""


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer in a folder, of a hub name, or of an embedded model.

    Raises:
        ValueError: none can be loaded.
    """
    from transformers import AutoTokenizer

    place = resolve_model(name) if name in EMBEDDED else name
    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(place)
    except (OSError, ValueError) as error:
        raise ValueError(f"No tokenizer can be loaded from {name}; give its folder or its name on the hub.") from error
    return tokenizer


def load_model_or_shape(
    name: str, load: ModelLoader, *, tokenizer: str | None = None, device: str | None = None, dtype: Any = "auto"
) -> LanguageModel:
    """The model of that name, or one of that shape with the tokenizer that is named (by default SmolLM2's).

    ``load`` is asked for what is no shape.

    Raises:
        ValueError: there is no such model, shape, device or tokenizer, the tokenizer does not fit, or one is given for
            a model that has its own.
    """
    if name in SHAPES:
        return _shaped(name, load_tokenizer(tokenizer or "smollm2"), device, dtype)
    if tokenizer is not None:
        raise ValueError(f"{name} has a tokenizer of its own; --tokenizer is for a shape: {', '.join(SHAPES)}.")
    return load(name, device=device, dtype=dtype)


def _shaped(name: str, tokenizer: Any, device: str | None, dtype: Any) -> LanguageModel:
    import torch

    from antiphon.accel import LanguageModel
    from antiphon.accel.engines.torch.engine import engine_of
    from antiphon.accel.engines.torch.loading import choose_device, choose_dtype

    place = choose_device(device)
    if dtype == "auto":
        chosen = choose_dtype(torch.bfloat16, place)
        dtype = torch.bfloat16 if chosen == "auto" else chosen
    language_model = LanguageModel(shaped(name, tokenizer, dtype=dtype, device=place), tokenizer, name=name)
    engine = engine_of(language_model.model)
    engine.lock.run(engine.own)  # nobody else has this model
    return language_model
