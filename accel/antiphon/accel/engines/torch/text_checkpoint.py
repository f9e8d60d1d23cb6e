"""Find the text model in a multimodal checkpoint, to load it without vision and audio weights.

Gemma 3, Gemma 4, Mistral Small 3, Qwen3.5, Qwen2.5-VL and others are published as one checkpoint with a text model,
encoders for images or sound, and projectors between them. This module only reads configurations and weight names.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
    MODEL_MAPPING,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.modeling_outputs import CausalLMOutputWithPast

CAUSAL: Any = MODEL_FOR_CAUSAL_LM_MAPPING
MULTIMODAL: Any = MODEL_FOR_MULTIMODAL_LM_MAPPING
TEXT_MODELS: Any = MODEL_MAPPING
"""Classes of transformers by the class of their configuration."""

_TEXT_MODEL = r"^(?:thinker\.)?(?:model\.)?(?:language_model|text_model|llm)\.(?:model\.)?"
NAMES = {
    _TEXT_MODEL + r"lm_head\.": "lm_head.",
    _TEXT_MODEL + r"blocks\.": "model.layers.",
    _TEXT_MODEL: "model.",
    r"^thinker\.": "",
}
"""Names of weights in multimodal checkpoints, as regular expressions, and their names in a causal language model."""

SHARED_SETTINGS = (
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "quantization_config",
    "dtype",
    "prompt_format",
)
"""Settings of the whole model that replace the settings of its text model."""

UNSCALED_LOGITS = ("aya_vision", "cohere2_vision")
"""Model types that do not scale the logits, although the causal class of their text model does."""

FEATURES = {"phi4_multimodal": "embed_tokens_extend"}
"""By model type: the module of the text model that adds image and sound features to embeddings."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """How the text model of a multimodal checkpoint is loaded.

    Attributes:
        model_class: A causal class of transformers, or a class that `_causal_class` has built.
        key_mapping: New names of the weights, for ``from_pretrained``.
        features: Name of the module inside the text model that adds image and sound features to the
            embeddings; empty if there is no such module.
    """

    model_class: type[PreTrainedModel]
    config: PreTrainedConfig
    key_mapping: dict[str, str] = field(default_factory=dict)
    features: str = ""

    def load(self, name: str, **options: Any) -> Any:
        """Load the text model from a folder or the hub.

        Args:
            **options: Arguments of ``from_pretrained``.
        """
        own = self.model_class
        fields: dict[str, Any] = {"__module__": own.__module__}
        # The weights of the other parts need no warning; by the other patterns transformers finds MTP layers.
        fields["_keys_to_ignore_on_load_unexpected"] = [".", *(own._keys_to_ignore_on_load_unexpected or ())]
        if self.features:
            fields["__init__"] = _without_features(own, self.features)
        text_class: Any = type(own.__name__, (own,), fields)
        return text_class.from_pretrained(name, config=self.config, key_mapping=self.key_mapping or None, **options)


def find_text_part(config: PreTrainedConfig) -> TextPart | None:
    """Return how to load the text model of a checkpoint; None if `AutoModelForCausalLM` can load the checkpoint.

    Raises:
        ValueError: The multimodal type has no text model that can be loaded alone.
    """
    if config.is_encoder_decoder or type(config) not in MULTIMODAL:
        return None
    given = config.get_text_config(decoder=True)
    if given is config:
        return _whole(config)
    text = copy.deepcopy(given)
    for name in SHARED_SETTINGS:
        if getattr(config, name, None) is not None:
            setattr(text, name, getattr(config, name))
    if config.model_type in UNSCALED_LOGITS:
        text.logit_scale = 1.0
    whole = MULTIMODAL[type(config)]
    if type(text) in CAUSAL:
        model_class = CAUSAL[type(text)]
    elif getattr(native := CAUSAL.get(type(config), None), "config_class", None) is type(text):
        model_class = native
    elif (text_class := _text_class(whole, type(text))) is not None:
        model_class = _causal_class(text_class)
    else:
        raise ValueError(_refusal(config))
    has_own_names = _register_conversion(whole, config.model_type, model_class, text.model_type)
    return TextPart(model_class, text, {} if has_own_names else NAMES)


def _whole(config: PreTrainedConfig) -> TextPart | None:
    """Return how to load a model that has no separate text model."""
    if config.model_type in FEATURES:
        return TextPart(CAUSAL[type(config)], config, features=FEATURES[config.model_type])
    if type(config) in CAUSAL:
        return None
    model_class = MULTIMODAL[type(config)]
    if not model_class.__name__.endswith("ForCausalLM"):
        raise ValueError(_refusal(config))
    return TextPart(model_class, config)


def _text_class(whole: Any, config_class: type[PreTrainedConfig]) -> Any:
    """Return the class of the text model: from `TEXT_MODELS`, or from the module of the multimodal class."""
    if config_class in TEXT_MODELS:
        return TEXT_MODELS[config_class]
    found = [
        each
        for each in vars(sys.modules[whole.__module__]).values()
        if isinstance(each, type) and issubclass(each, PreTrainedModel) and each.__name__.endswith("Model")
        if "PreTrained" not in each.__name__ and each.config_class is config_class
    ]
    return found[0] if len(found) == 1 else None


def _refusal(config: PreTrainedConfig) -> str:
    return (
        f"models of the type {config.model_type!r} have no text model that can be loaded without their other parts; "
        "use a text model, or a multimodal one such as gemma3, gemma4, mistral3, qwen3_5 or qwen3_vl"
    )


@cache
def _register_conversion(whole: Any, model_type: str, model_class: Any, text_type: str) -> bool:
    """Register transformers' conversion of a multimodal checkpoint for the causal class of its text model.

    This is needed if the checkpoint stores weights in another form, such as separate experts, and
    transformers converts them only for the multimodal class. Returns False if the registration is
    not needed.
    """
    conversion = [each for key in (whole.__name__, model_type) for each in get_checkpoint_conversion_mapping(key) or ()]
    is_renaming = all(isinstance(each, WeightRenaming) for each in conversion)
    if is_renaming or any(get_checkpoint_conversion_mapping(key) for key in (model_class.__name__, text_type)):
        return False
    if model_class.__module__.startswith("transformers.") and not text_type.startswith(model_type):
        return False  # checkpoints of other model types use the same class
    renamed = [WeightRenaming(source, target) for source, target in NAMES.items()]
    register_checkpoint_conversion_mapping(model_class.__name__, conversion + renamed)
    return True


def _without_features(model_class: type[PreTrainedModel], name: str) -> Any:
    """Return a constructor of the model without the weights of its image and sound encoders."""

    def construct(self: Any, config: PreTrainedConfig) -> None:
        model_class.__init__(self, config)
        setattr(self.model, name, _NoFeatures())

    return construct


class _NoFeatures(nn.Module):
    """Replaces image and sound encoders; returns the embeddings of a text unchanged."""

    def forward(self, input_ids: Tensor, inputs_embeds: Tensor, **features: Any) -> Tensor:
        return inputs_embeds


@cache
def _causal_class(text_class: Any) -> type[PreTrainedModel]:
    """Return a causal class for a text model that transformers only provides inside multimodal models."""
    parent = text_class.__bases__[0]
    fields = {
        "__doc__": f"{text_class.__name__} with its LM head.",
        "__module__": __name__,
        "config_class": text_class.config_class,
        "base_model_prefix": "model",
        "_tied_weights_keys": {"lm_head.weight": "model.embed_tokens.weight"},
        "_text_class": text_class,
    }
    name = text_class.__name__.removesuffix("Model").removesuffix("Text") + "TextForCausalLM"
    return type(name, (_TextForCausalLM, parent, GenerationMixin), fields)


class _TextForCausalLM:
    """The methods of the classes that `_causal_class` returns."""

    _text_class: type[PreTrainedModel]
    config: Any

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)  # type: ignore[call-arg]  # the next class is a PreTrainedModel
        self.model = self._text_class(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()  # type: ignore[attr-defined]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **arguments: Any,
    ) -> CausalLMOutputWithPast:
        """Return the logits that the multimodal class would return for a text without images."""
        output = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **arguments,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(output.last_hidden_state[:, kept])
        logits = logits * getattr(self.config, "output_multiplier", 1.0) / getattr(self.config, "logits_scaling", 1.0)
        if (cap := getattr(self.config, "final_logit_softcapping", None)) is not None:
            logits = cap * torch.tanh(logits / cap)
        return CausalLMOutputWithPast(
            logits=logits,
            past_key_values=output.past_key_values,
            hidden_states=getattr(output, "hidden_states", None),
            attentions=getattr(output, "attentions", None),
        )
