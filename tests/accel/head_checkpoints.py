"""Tiny checkpoints with draft heads: MTP layers as they are published, and EAGLE-3 heads as speculators saves them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import MtpModel

from tests.families.table import ALL_FAMILIES
from tests.tiny import VOCAB_SIZE, Family, byte_tokenizer, tiny_model

GLM: Family = ("glm4_moe", ALL_FAMILIES["llama"][1] | {
    "num_hidden_layers": 46, "hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "head_dim": 8,
    "n_routed_experts": 2, "num_experts_per_tok": 1, "first_k_dense_replace": 44, "num_nextn_predict_layers": 1,
})  # fmt: skip
"""As deep as GLM-4.5-Air, because transformers finds the MTP layer by the number 46."""

QWEN: Family = ("qwen3_5_text", ALL_FAMILIES["qwen3_5"][1] | {"mtp_num_hidden_layers": 1})

LAYOUTS = {
    "glm4_moe": {"layers.0.mtp_block.": "model.layers.46.", "layers.0.post_norm.": "model.layers.46.shared_head.norm.",
                 "layers.0.": "model.layers.46."},
    "qwen3_5": {"layers.0.mtp_block.": "mtp.layers.0.", "layers.0.eh_proj.": "mtp.fc.",
                "layers.0.enorm.": "mtp.pre_fc_norm_embedding.", "layers.0.hnorm.": "mtp.pre_fc_norm_hidden.",
                "layers.0.post_norm.": "mtp.norm."},
}  # fmt: skip
"""Prefixes of weights in transformers' MTP model, and in published checkpoints."""


def save_mtp_checkpoint(kind: str, folder: Path) -> Path:
    """Save a model with one random MTP layer and return the folder."""
    model = tiny_model({"glm4_moe": GLM, "qwen3_5": QWEN}[kind])
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    text: Any = model.config
    text.num_mtp_layers, text.mtp_layer_types = 1, ["full_attention"]
    torch.manual_seed(7)
    head = MtpModel(model, 1)
    weights = load_file(folder / "model.safetensors")
    for name, weight in head.state_dict().items():
        old = next((prefix for prefix in LAYOUTS[kind] if name.startswith(prefix)), None)
        if old is not None:
            noise = 0.08 * torch.randn_like(weight)
            weights[LAYOUTS[kind][old] + name.removeprefix(old)] = noise if weight.ndim > 1 else weight + noise
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


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
