"""Tiny checkpoints of multimodal models, as transformers publishes and saves them."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
)

from tests.tiny import BOS, EOS, PAD, VOCAB_SIZE, save_model

PLACEHOLDER = VOCAB_SIZE - 1
"""Token that stands for an image or sound."""

SIZES = {
    "vocab_size": VOCAB_SIZE, "vocab_size_per_layer_input": VOCAB_SIZE, "hidden_size_per_layer_input": 8,
    "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
    "moe_intermediate_size": 32, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "depth": 2, "embed_dim": 64, "num_heads": 4, "out_hidden_size": 64, "image_size": 28, "patch_size": 14,
    "num_layers": 2, "d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 64,
}  # fmt: skip
"""Values that replace those of a default configuration, in all of its parts."""

MROPE: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
HALF_MROPE: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5,
    }
}  # fmt: skip
GEMMA = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 16, "num_kv_shared_layers": 0}
LLAMA = {"model_type": "llama", "tie_word_embeddings": False}

TEXT_SETTINGS: dict[str, dict[str, Any]] = {
    "aria": {}, "aya_vision": {}, "cohere2_vision": {}, "deepseek_vl": {}, "exaone4_5": {}, "gemma3": {},
    "gemma4": GEMMA | {"global_head_dim": 16},
    "glm46v": MROPE, "glm4v": MROPE, "glm4v_moe": HALF_MROPE, "glm_ocr": MROPE,
    "got_ocr2": {}, "granite_docling": {}, "hyperclovax_vision_v2": {}, "idefics2": {}, "idefics3": {}, "internvl": {},
    "kimi_k25": {"head_dim": 8, "qk_head_dim": 16, "num_key_value_heads": 4},
    "lfm2_vl": {}, "lfm3_vl": {}, "lighton_ocr": {}, "llama4": {}, "llava": {}, "llava_next": {},
    "llava_onevision": {}, "minicpmv4_6": {}, "minimax_m3_vl": {}, "mistral3": {}, "mllama": {},
    "muse_glimmer": {}, "nemotron_h_omni": {}, "ovis2": {}, "paddleocr_vl": MROPE,
    "paligemma": {}, "phi4_multimodal": {}, "qwen2_5_vl": MROPE, "qwen2_audio": {}, "qwen2_vl": MROPE,
    "qwen3_5": {}, "qwen3_5_moe": {}, "qwen3_asr": {}, "qwen3_vl": {}, "qwen3_vl_moe": {}, "smolvlm": {},
    "step3p7": {"sliding_window": 16}, "unlimited_ocr": {}, "video_llama_3": {}, "vipllava": {}, "voxtral": {},
}  # fmt: skip
"""Settings of the text model by model type, besides `SIZES`."""


def multimodal_config(model_type: str) -> PreTrainedConfig:
    """Return a tiny configuration of a multimodal type."""
    fields = _reduced(CONFIG_MAPPING[model_type]().to_dict())
    if isinstance(fields.get("text_config"), dict):
        fields["text_config"] |= TEXT_SETTINGS.get(model_type, {})
    if model_type == "gemma4":  # its default configuration has no encoders
        vision = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
        fields["vision_config"] = {"model_type": "gemma4_vision", "head_dim": 16, "num_key_value_heads": 4} | vision
    return CONFIG_MAPPING[model_type].from_dict(fields)


def _reduced(fields: dict[str, Any]) -> dict[str, Any]:
    reduced: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "per_layer_config":
            continue
        if isinstance(value, dict) and name.endswith("_config"):
            reduced[name] = _reduced(value)
        elif name in SIZES and isinstance(value, int):
            reduced[name] = SIZES[name]
        elif name in ("layer_types", "mlp_layer_types") and isinstance(value, list):
            reduced[name] = [*value[:3], value[-1]]
        elif name.endswith(("_token_id", "_token_index")) and isinstance(value, int):
            reduced[name] = PLACEHOLDER
        else:
            reduced[name] = value
    return reduced


def save_multimodal(model_type: str, folder: Path) -> Any:
    """Save a tiny checkpoint with a byte tokenizer; return the whole model, loaded from it by transformers."""
    config = multimodal_config(model_type)
    model_class: Any = MODEL_FOR_MULTIMODAL_LM_MAPPING[type(config)]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = model_class._from_config(config, dtype=torch.float32)
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.data.normal_(0, 0.08)
    save_model(model, folder)
    return model_class.from_pretrained(folder, dtype=torch.float32).eval()


def save_gemma3n(folder: Path) -> Any:
    """Save a tiny Gemma 3n without its image encoder, which needs the package timm; return the text model."""
    settings = {"intermediate_size": [96] * 4, "activation_sparsity_pattern": [0.0] * 4, "laurel_rank": 8}
    shape = {name: SIZES[name] for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim")}
    own = settings | shape | GEMMA | {"num_key_value_heads": 2, "hidden_size_per_layer_input": 8}
    sizes = {"vocab_size": VOCAB_SIZE, "vocab_size_per_layer_input": VOCAB_SIZE, "max_position_embeddings": 512}
    config = AutoConfig.for_model("gemma3n_text", **own, **sizes, initializer_range=0.08)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    prefixed = {name.replace("model.", "model.language_model.", 1): weight for name, weight in weights.items()}
    prefixed["model.vision_tower.conv_stem.weight"] = torch.zeros(3, 8)
    save_file(prefixed, folder / "model.safetensors", {"format": "pt"})
    whole = AutoConfig.for_model("gemma3n", text_config=model.config.to_dict())
    save_model(whole, folder)
    return model
