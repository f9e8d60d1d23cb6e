"""Models of a given architecture and size with random weights, for replays of a given text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


SHAPES: dict[str, dict[str, Any]] = {
    "llama-15m": _llama(288, 6, 6, 768, tie_word_embeddings=True),
    "llama-125m": _llama(768, 12, 12, 2048),
    "llama-0.5b": _llama(1280, 20, 20, 3456),
    "llama-2-7b": _llama(4096, 32, 32, 11_008),
    "llama-3.1-8b": _llama(
        4096, 32, 32, 14_336, num_key_value_heads=8, vocab_size=128_256, max_position_embeddings=131_072
    ),
    "qwen2.5-0.5b": _qwen(896, 24, 14, 4864, 2, vocab_size=151_936, tie_word_embeddings=True),
    "qwen2.5-7b": _qwen(3584, 28, 28, 18_944, 4, vocab_size=152_064),
}
"""Configurations after the models of those names; the two without a family's number are of our own proportions."""


def shaped(name: str, tokenizer: PreTrainedTokenizerBase, *, dtype: Any, device: Any) -> PreTrainedModel:
    """A model of that shape, with the same random weights each time, that ends where the tokenizer says.

    Raises:
        ValueError: there is no such shape, or its vocabulary has no room for the tokenizer's.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if name not in SHAPES:
        raise ValueError(f"There is no shape {name!r}; choose one of {', '.join(SHAPES)}.")
    fields = dict(SHAPES[name])
    if len(tokenizer) > fields["vocab_size"]:
        raise ValueError(
            f"The tokenizer has {len(tokenizer):,} tokens and the shape {name!r} has room for "
            f"{fields['vocab_size']:,}; give the folder or hub name of one that fits: --tokenizer."
        )
    end = tokenizer.eos_token_id
    config = AutoConfig.for_model(fields.pop("model_type"), **fields, eos_token_id=end, pad_token_id=end)
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.device(device):
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.eval()
    return model
