"""Models and tokenizers that benchmarks run on: models by name, and random weights of a given architecture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from platformdirs import user_cache_dir

from antiphon.accel.files import temporary_folder
from antiphon.pipelines.benchmark.replay import Tokenizer
from antiphon.pipelines.models.bundled import BUNDLED, resolve_model
from antiphon.pipelines.progress import Progress

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from antiphon.accel import LanguageModel


def _llama(hidden: int, layers: int, heads: int, inner: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": inner,
        "vocab_size": 32_000,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    } | more


def _qwen(hidden: int, layers: int, heads: int, inner: int, kv_heads: int, **more: Any) -> dict[str, Any]:
    shared = {"model_type": "qwen2", "num_key_value_heads": kv_heads, "max_position_embeddings": 32_768}
    return _llama(hidden, layers, heads, inner) | shared | {"rope_theta": 1e6} | more


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama-15m": _llama(288, 6, 6, 768, tie_word_embeddings=True),
    "llama-125m": _llama(768, 12, 12, 2048),
    "llama-0.5b": _llama(1280, 20, 20, 3456),
    "llama-2-7b": _llama(4096, 32, 32, 11_008),
    "llama-3.1-8b": _llama(
        4096, 32, 32, 14_336, num_key_value_heads=8, vocab_size=128_256, max_position_embeddings=131_072
    ),
    "llama-3.2-1b": _llama(
        2048,
        16,
        32,
        8192,
        num_key_value_heads=8,
        vocab_size=128_256,
        max_position_embeddings=131_072,
        tie_word_embeddings=True,
    ),
    "qwen2.5-0.5b": _qwen(896, 24, 14, 4864, 2, vocab_size=151_936, tie_word_embeddings=True),
    "qwen2.5-1.5b": _qwen(1536, 28, 12, 8960, 2, vocab_size=151_936, tie_word_embeddings=True),
    "qwen2.5-7b": _qwen(3584, 28, 28, 18_944, 4, vocab_size=152_064),
    "qwen3-4b": _qwen(
        2560, 36, 32, 9728, 8, model_type="qwen3", head_dim=128, vocab_size=151_936, tie_word_embeddings=True
    ),
}
"""Configurations by architecture name; all are those of published models, except llama-125m and llama-0.5b."""


class ModelLoader(Protocol):
    """A function that loads a language model by name."""

    def __call__(self, name: str, *, device: str | None, dtype: Any) -> LanguageModel:
        """Load the model.

        Args:
            name: Name, folder or hub name.
            device: Device name, or None for the default.
            dtype: A torch dtype, or "auto".
        """


def load_tokenizer(name: str) -> Tokenizer:
    """Load a tokenizer by its folder, its hub name, or the name of a bundled model.

    Raises:
        ValueError: no tokenizer can be loaded.
    """
    from transformers import AutoTokenizer

    place = resolve_model(name) if name in BUNDLED else name
    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(place)
    except (OSError, ValueError) as error:
        raise ValueError(f"No tokenizer can be loaded from {name}; give its folder or its name on the hub.") from error
    return tokenizer


def load_model_or_random(
    name: str, load: ModelLoader, *, tokenizer: str | None = None, device: str | None = None, dtype: Any = "auto"
) -> LanguageModel:
    """Load a model by name, or build one with random weights if the name is an architecture of `ARCHITECTURES`.

    Args:
        name: Model name or architecture.
        load: Loads names that are no architecture.
        tokenizer: Tokenizer of an architecture; default SmolLM2's.
        device: Device name; default a GPU if there is one.
        dtype: A torch dtype, or "auto".

    Raises:
        ValueError: the model, device or tokenizer does not exist, the tokenizer has too many tokens, or a tokenizer is
            given for a model that has its own.
    """
    if name in ARCHITECTURES:
        return _random_language_model(name, load_tokenizer(tokenizer or "smollm2"), device, dtype)
    if tokenizer is not None:
        names = ", ".join(ARCHITECTURES)
        raise ValueError(f"{name} has a tokenizer of its own; --tokenizer is for random weights only: {names}.")
    return load(name, device=device, dtype=dtype)


def stored_shape(name: str, *, tokenizer: str | None = None, report: Progress | None = None) -> Path:
    """Return the folder of a checkpoint in bfloat16 with random weights; it is made once and stays in the user's cache.

    Args:
        name: A name of `ARCHITECTURES`.
        tokenizer: Its tokenizer; default SmolLM2's.
        report: Called with stage, done and total.

    Raises:
        ValueError: there is no such architecture or tokenizer, or the tokenizer has too many tokens.
        OSError: there is no room for it.
    """
    import torch

    chosen: Any = load_tokenizer(tokenizer or "smollm2")
    folder = Path(user_cache_dir("antiphon")) / "shapes" / f"{name}-{len(chosen)}"
    if not (folder / "config.json").is_file():
        if report is not None:
            report(f"Making random weights of {name}, once", 0, 2)
        model = random_model(name, chosen, dtype=torch.bfloat16, device=torch.device("cpu"))
        if report is not None:
            report(f"Making random weights of {name}, once", 1, 2)
        with temporary_folder(folder.parent, ".unfinished-") as unfinished:
            model.save_pretrained(unfinished)
            chosen.save_pretrained(unfinished)
            unfinished.rename(folder)
        if report is not None:
            report(f"Making random weights of {name}, once", 2, 2)
    return folder


def random_model(name: str, tokenizer: PreTrainedTokenizerBase, *, dtype: Any, device: Any) -> PreTrainedModel:
    """Build a model of an architecture with random weights, always the same ones.

    Args:
        name: A name of `ARCHITECTURES`.
        tokenizer: Its end-of-sequence token becomes the model's.
        dtype: torch dtype of the weights.
        device: torch device of the weights.

    Raises:
        ValueError: there is no such architecture, or the tokenizer has more tokens than its vocabulary.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if name not in ARCHITECTURES:
        raise ValueError(f"There is no architecture {name!r}; choose one of {', '.join(ARCHITECTURES)}.")
    fields = dict(ARCHITECTURES[name])
    if len(tokenizer) > fields["vocab_size"]:
        raise ValueError(
            f"The tokenizer has {len(tokenizer):,} tokens and the architecture {name!r} has room for "
            f"{fields['vocab_size']:,}; give the folder or hub name of one that fits: --tokenizer."
        )
    end = tokenizer.eos_token_id
    config = AutoConfig.for_model(fields.pop("model_type"), **fields, eos_token_id=end)
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.device(device):
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.config.pad_token_id = end  # set later: the weights of a padding token would be zero
    if model.generation_config is not None:
        model.generation_config.pad_token_id = end
    model.eval()
    return model


def _random_language_model(name: str, tokenizer: Any, device: str | None, dtype: Any) -> LanguageModel:
    import torch

    from antiphon.accel import LanguageModel
    from antiphon.accel.engines.torch.loading import choose_device, choose_dtype

    place = choose_device(device)
    if dtype == "auto":
        chosen = choose_dtype(torch.bfloat16, place)
        dtype = torch.bfloat16 if chosen == "auto" else chosen
    return LanguageModel(random_model(name, tokenizer, dtype=dtype, device=place), tokenizer, name=name)
