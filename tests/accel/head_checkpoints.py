"""Tiny checkpoints with random draft heads, as they are published; and language models with them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import MtpModel

from antiphon.accel.engines.torch.assistants import layers_without_keys
from antiphon.accel.language_model import LanguageModel
from tests.families.table import ALL_FAMILIES
from tests.tiny import VOCAB_SIZE, Family, byte_tokenizer, save_model, tiny_model

GLM: Family = ("glm4_moe", ALL_FAMILIES["llama"][1] | {
    "num_hidden_layers": 46, "hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "head_dim": 8,
    "n_routed_experts": 2, "num_experts_per_tok": 1, "first_k_dense_replace": 44, "num_nextn_predict_layers": 1,
})  # fmt: skip
"""As deep as GLM-4.5-Air, because transformers finds the MTP layer by the number 46."""

QWEN: Family = ("qwen3_5_text", ALL_FAMILIES["qwen3_5"][1] | {"mtp_num_hidden_layers": 1})

EXAONE: Family = ("exaone_moe", ALL_FAMILIES["exaone_moe"][1] | {
    "num_nextn_predict_layers": 3, "mtp_layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2,
})  # fmt: skip
"""Several MTP layers with windows, as Step-3.7 has them. The model has more layers than these, because transformers
takes a higher number of an MTP layer for that of another format."""

GEMMA: Family = ("gemma4_text", ALL_FAMILIES["gemma4"][1] | {"num_hidden_layers": 6, "layer_types": [
    "sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention",
], "num_kv_shared_layers": 2})  # fmt: skip

MTP = {"glm4_moe": GLM, "qwen3_5": QWEN, "exaone_moe": EXAONE}

LAYOUTS = {
    "exaone_moe": {f"layers.{layer}.": f"mtp.layers.{layer}." for layer in range(3)},
    "glm4_moe": {"layers.0.mtp_block.": "model.layers.46.", "layers.0.post_norm.": "model.layers.46.shared_head.norm.",
                 "layers.0.": "model.layers.46."},
    "qwen3_5": {"layers.0.mtp_block.": "mtp.layers.0.", "layers.0.eh_proj.": "mtp.fc.",
                "layers.0.enorm.": "mtp.pre_fc_norm_embedding.", "layers.0.hnorm.": "mtp.pre_fc_norm_hidden.",
                "layers.0.post_norm.": "mtp.norm."},
}  # fmt: skip
"""Prefixes of weights in transformers' MTP model, and in published checkpoints."""


def save_mtp_checkpoint(kind: str, folder: Path) -> Path:
    """Save a model with random MTP layers and return the folder."""
    model = tiny_model(MTP[kind])
    save_model(model, folder)
    add_mtp_layers(model, kind, folder)
    return folder


def add_mtp_layers(model: PreTrainedModel, kind: str, folder: Path) -> None:
    """Add random MTP layers to the saved weights of a model."""
    text: Any = model.config
    kinds = getattr(text, "mtp_layer_types", None) or ["full_attention"]
    text.num_mtp_layers, text.mtp_layer_types, text.mtp_mlp_layer_types = len(kinds), kinds, ["sparse"] * len(kinds)
    torch.manual_seed(7)
    head = MtpModel(model, len(kinds))
    weights = load_file(folder / "model.safetensors")
    for name, weight in head.state_dict().items():
        old = next((prefix for prefix in LAYOUTS[kind] if name.startswith(prefix)), None)
        if old is not None:
            noise = 0.08 * torch.randn_like(weight)
            new = LAYOUTS[kind][old] + name.removeprefix(old).removeprefix("mtp_block.")
            weights[new] = noise if weight.ndim > 1 else weight + noise
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def save_eagle3(model: PreTrainedModel, folder: Path, *, draft_vocab: int = 100, seed: int = 1, **changes: Any) -> Path:
    """Save a random EAGLE-3 head with a reduced vocabulary for a model, and return the folder.

    Args:
        changes: Changed fields of the configuration of its layer.
    """
    config = model.config
    size, inner, heads = config.hidden_size, 96, 4
    layer = {
        "model_type": "llama", "hidden_size": size, "intermediate_size": inner, "num_hidden_layers": 1,
        "num_attention_heads": heads, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCAB_SIZE,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 512,
    } | changes  # fmt: skip
    size = layer["hidden_size"]
    shapes = {
        "fc.weight": (size, 3 * size), "lm_head.weight": (draft_vocab, size), "norm.weight": (size,),
        "layers.0.hidden_norm.weight": (size,), "layers.0.input_layernorm.weight": (size,),
        "layers.0.post_attention_layernorm.weight": (size,), "layers.0.self_attn.q_proj.weight": (64, 2 * size),
        "layers.0.self_attn.k_proj.weight": (32, 2 * size), "layers.0.self_attn.v_proj.weight": (32, 2 * size),
        "layers.0.self_attn.o_proj.weight": (size, 64), "layers.0.mlp.gate_proj.weight": (inner, size),
        "layers.0.mlp.up_proj.weight": (inner, size), "layers.0.mlp.down_proj.weight": (size, inner),
    }  # fmt: skip
    random = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {
        name: 0.1 * torch.randn(shape, generator=random) + (len(shape) == 1) for name, shape in shapes.items()
    }
    used = torch.randperm(VOCAB_SIZE, generator=random)[:draft_vocab].sort().values
    weights["d2t"] = used - torch.arange(draft_vocab)
    weights["t2d"] = torch.zeros(VOCAB_SIZE, dtype=torch.bool).index_fill(0, used, True)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    facts = {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "draft_vocab_size": draft_vocab,
        "norm_before_residual": seed % 2 == 0, "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        "transformer_layer_config": layer,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(facts))
    return folder


def save_gemma4_assistant(model: PreTrainedModel, folder: Path, **changes: Any) -> Path:
    """Save a random assistant for a Gemma 4 model and return the folder.

    Args:
        changes: Changed fields of its configuration.
    """
    shape = ALL_FAMILIES["gemma4"][1] | {
        "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "hidden_size": 32,
        "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "vocab_size": VOCAB_SIZE,
        "initializer_range": 0.3,
    }  # fmt: skip
    text = AutoConfig.for_model("gemma4_text", **shape)
    config = AutoConfig.for_model(
        "gemma4_assistant", **{"text_config": text, "backbone_hidden_size": model.config.hidden_size} | changes
    )
    torch.manual_seed(3)
    with layers_without_keys(type(text)):
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


def save_dflash(model: PreTrainedModel, folder: Path, *, is_authors: bool = False, **changes: Any) -> Path:
    """Save a random DFlash model and return the folder.

    Args:
        is_authors: Whether the names are those of its authors' checkpoints instead of those of transformers.
        changes: Changed fields of its configuration.
    """
    shape: dict[str, Any] = {
        "hidden_size": model.config.hidden_size, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "sliding_window": 24,
        "layer_types": ["sliding_attention", "full_attention"], "rms_norm_eps": 1e-6, "initializer_range": 0.2,
    }  # fmt: skip
    own = {"block_size": 6, "mask_token_id": VOCAB_SIZE - 2, "target_layer_ids": [0, 1]} | changes
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    torch.manual_seed(5)
    draft = AutoModel.from_config(
        AutoConfig.for_model("muse_glimmer_assistant", **shape | rope | own), dtype=torch.float32
    )
    draft.save_pretrained(folder)
    if is_authors:
        names = {"encoder.fc.": "fc.", "encoder.output_norm_enc.": "hidden_norm."}
        weights = load_file(folder / "model.safetensors")
        for old, new in names.items():
            weights |= {name.replace(old, new): weights.pop(name) for name in [*weights] if name.startswith(old)}
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        facts = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "rope_theta": 1e6, "rope_scaling": None}
        block = {"block_size": own.pop("block_size")}
        (folder / "config.json").write_text(json.dumps(shape | facts | block | {"dflash_config": own}))
    return folder


def model_with_head(kind: str, folder: Path) -> LanguageModel:
    """Return a language model on torch with a random head of one kind, without recycling."""
    more: Any = {"engine": "torch", "recycling": False}
    if kind in MTP:
        return LanguageModel.from_pretrained(save_mtp_checkpoint(kind, folder), **more)
    model = tiny_model(GEMMA if kind == "gemma4" else "llama")
    save = {"eagle3": save_eagle3, "gemma4": save_gemma4_assistant, "dflash": save_dflash}[kind]
    return LanguageModel(model, byte_tokenizer(), head=save(model, folder), **more)


def eagle3_reference(path: Path, read: Tensor, embeddings: Tensor, tokens: list[int], steps: int) -> list[int]:
    """Return the chain of an EAGLE-3 head, computed without a cache from the formulas of vLLM's implementation."""
    weights = load_file(path / "model.safetensors")
    layer = {name.removeprefix("layers.0."): weight for name, weight in weights.items()}

    def rotated(heads: Tensor) -> Tensor:
        angles = torch.arange(heads.shape[1])[:, None] * 10000.0 ** (-torch.arange(0, 16, 2) / 16)
        first, second = heads.chunk(2, dim=-1)
        cosine, sine = angles.cos(), angles.sin()
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)

    def norm(hidden: Tensor, name: str) -> Tensor:
        return rms_norm(hidden, hidden.shape[-1:], layer[f"{name}.weight"], 1e-6)

    hidden, tokens, chain = linear(read, weights["fc.weight"]), list(tokens), list[int]()
    for _ in range(steps):
        joined = torch.cat([norm(embeddings[tokens], "input_layernorm"), norm(hidden, "hidden_norm")], -1)
        names = [f"self_attn.{name}_proj.weight" for name in "qkv"]
        queries, keys, values = (
            linear(joined, layer[name]).view(len(tokens), -1, 16).transpose(0, 1) for name in names
        )
        states = rotated(queries)[None], rotated(keys)[None], values[None]
        attended = scaled_dot_product_attention(*states, is_causal=True, enable_gqa=True)
        output = hidden + linear(attended[0].transpose(0, 1).flatten(1), layer["self_attn.o_proj.weight"])
        inner = norm(output, "post_attention_layernorm")
        gated = silu(linear(inner, layer["mlp.gate_proj.weight"])) * linear(inner, layer["mlp.up_proj.weight"])
        output = output + linear(gated, layer["mlp.down_proj.weight"])
        best = int(linear(norm(output[-1], "norm"), weights["lm_head.weight"]).argmax())
        chain.append(best + int(weights["d2t"][best]))
        tokens.append(chain[-1])
        hidden = torch.cat([hidden, output[-1:]])
    return chain
