"""Loads language models by name, for Rag, LangChain and LlamaIndex."""

from __future__ import annotations

from typing import Any

from antiphon.accel import TextModel
from antiphon.accel.remote.server import is_address
from antiphon.pipelines.extractive_model import EXTRACTIVE, ExtractiveModel


def text_model(model: TextModel | str | None, **settings: Any) -> TextModel:
    """Return a language model, loaded if it is given by name.

    Args:
        model: a model, which is returned unchanged, or a name: ``extractive``, a bundled model, a
            folder, a GGUF file, a name on the hub, or a server's address. None means
            ``extractive``, which quotes the documents without a language model.
        **settings: arguments of `LanguageModel.from_pretrained`, or of `RemoteLanguageModel`.

    Raises:
        ValueError: there is no such model; see `resolve_model`.
    """
    if model is None or model == EXTRACTIVE:
        return ExtractiveModel()
    if not isinstance(model, str):
        return model
    from antiphon.accel import LanguageModel, RemoteLanguageModel, resolve_model

    if is_address(model):
        return RemoteLanguageModel(model, **settings)
    resolve_model(model)  # raises an error that explains what is wrong with the name
    return LanguageModel.from_pretrained(model, **settings)
