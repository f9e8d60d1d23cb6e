"""Sizes of published models: checkpoints of their architectures with random weights, which decode as fast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from platformdirs import user_cache_dir

from antiphon.accel.files import temporary_folder
from antiphon.accel.models.bundled import resolve_model
from antiphon.accel.progress import Progress

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


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


def _qwen3_5(hidden: int, inner: int) -> dict[str, Any]:
    return _llama(
        hidden,
        24,
        8,
        inner,
        model_type="qwen3_5_text",
        num_key_value_heads=2,
        head_dim=256,
        vocab_size=248_320,
        max_position_embeddings=262_144,
        layer_types=[*["linear_attention"] * 3, "full_attention"] * 6,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_num_key_heads=16,
        linear_num_value_heads=16,
        rope_parameters={"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        tie_word_embeddings=True,
    )


ARCHITECTURES: dict[str, dict[str, Any]] = {
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
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    "qwen2.5-0.5b": _qwen(896, 24, 14, 4864, 2, vocab_size=151_936, tie_word_embeddings=True),
    "qwen2.5-1.5b": _qwen(1536, 28, 12, 8960, 2, vocab_size=151_936, tie_word_embeddings=True),
    "qwen2.5-7b": _qwen(3584, 28, 28, 18_944, 4, vocab_size=152_064),
    "qwen3-4b": _qwen(
        2560, 36, 32, 9728, 8, model_type="qwen3", head_dim=128, vocab_size=151_936, tie_word_embeddings=True
    ),
    "qwen3.5-0.8b": _qwen3_5(1024, 3584),
    "qwen3.5-2b": _qwen3_5(2048, 6144),
    "gemma-3-1b": _llama(
        1152,
        26,
        4,
        6912,
        model_type="gemma3_text",
        num_key_value_heads=1,
        head_dim=256,
        vocab_size=262_144,
        max_position_embeddings=32_768,
        sliding_window=512,
        query_pre_attn_scalar=256,
        tie_word_embeddings=True,
    ),
    "gemma-4-e2b": _llama(
        1536,
        35,
        8,
        6144,
        model_type="gemma4_text",
        num_key_value_heads=1,
        num_kv_shared_layers=20,
        head_dim=256,
        global_head_dim=512,
        hidden_size_per_layer_input=256,
        vocab_size_per_layer_input=262_144,
        vocab_size=262_144,
        max_position_embeddings=131_072,
        sliding_window=512,
        layer_types=[*["sliding_attention"] * 4, "full_attention"] * 7,
        use_double_wide_mlp=True,
        final_logit_softcapping=30.0,
        tie_word_embeddings=True,
    ),
    "lfm2.5-1.2b": _llama(
        2048,
        16,
        32,
        12_288,
        model_type="lfm2",
        num_key_value_heads=8,
        vocab_size=65_536,
        max_position_embeddings=128_000,
        layer_types=[
            *["conv", "conv", "full_attention"] * 3,
            *["conv", "full_attention"] * 3,
            "conv",
        ],
        tie_word_embeddings=True,
    ),
    "phi-4-mini": _llama(
        3072,
        32,
        24,
        8192,
        model_type="phi3",
        num_key_value_heads=8,
        vocab_size=200_064,
        max_position_embeddings=131_072,
        original_max_position_embeddings=4096,
        sliding_window=262_144,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 4096,
            "short_factor": [1.0] * 48,
            "long_factor": [1.0 + pair for pair in range(48)],  # not the published ones: no speed depends on them
        },
        tie_word_embeddings=True,
    ),
}
"""Configurations by the name of the published model."""


def stored_shape(name: str, *, report: Progress | None = None) -> Path:
    """Return the folder of a checkpoint in bfloat16 with random weights and SmolLM2's tokenizer.

    It is made once and stays in the user's cache.

    Args:
        name: A name of `ARCHITECTURES`.

    Raises:
        ValueError: there is no such architecture.
        OSError: there is no room for it.
    """
    import torch
    from transformers import AutoTokenizer

    _check_name(name)
    tokenizer: Any = AutoTokenizer.from_pretrained(resolve_model("smollm2"))
    folder = Path(user_cache_dir("antiphon")) / "shapes" / f"{name}-{len(tokenizer)}"
    if not (folder / "config.json").is_file():
        if report is not None:
            report(f"Making random weights of {name}, once", 0, 1)
        model = random_model(name, tokenizer, dtype=torch.bfloat16, device=torch.device("cpu"))
        with temporary_folder(folder.parent, ".unfinished-") as unfinished:
            model.save_pretrained(unfinished)
            tokenizer.save_pretrained(unfinished)
            unfinished.rename(folder)
        if report is not None:
            report(f"Making random weights of {name}, once", 1, 1)
    return folder


def random_model(name: str, tokenizer: PreTrainedTokenizerBase, *, dtype: Any, device: Any) -> PreTrainedModel:
    """Build a model of an architecture with random weights, always the same ones.

    Args:
        name: A name of `ARCHITECTURES`.
        tokenizer: Its end-of-sequence token becomes the model's.

    Raises:
        ValueError: there is no such architecture.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    _check_name(name)
    fields = dict(ARCHITECTURES[name])
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


def _check_name(name: str) -> None:
    if name not in ARCHITECTURES:
        raise ValueError(f"There is no architecture {name!r}; choose one of {', '.join(ARCHITECTURES)}.")
