"""Constructor fields and call parameters that the LangChain and LlamaIndex models share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    SecretStr,
    SkipValidation,
    model_validator,
)

from antiphon.accel import LanguageModel, TextModel
from antiphon.integrations.pickling import memo_sharing
from antiphon.pipelines import resolve_model
from antiphon.pipelines.prompt import READER_SYSTEM

PARAMETER_NAMES = {"max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens"}
"""The frameworks' parameter names and those of `Settings`, if they differ."""

LENGTH_NAMES = {*PARAMETER_NAMES, *PARAMETER_NAMES.values()}
"""All parameter names for the maximum answer length."""

PARAMETERS = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "seed",
    "drafter",
    "num_draft_tokens",
    "thinking",
    "max_thinking_tokens",
    "template_variables",
)

CALL_PARAMETERS = ("presence_penalty", "frequency_penalty", "logit_bias", "response_prefix", "json_schema", "timeout")
"""Further parameters of a call that are not constructor fields."""

MODEL_VARIABLE = "ANTIPHON_MODEL"
"""The environment variable with the default model."""

_LOADING = Lock()  # so that several threads load the same model only once


class GenerationFields(BaseModel):
    """A language model and its default generation parameters; a call can override them.

    Attributes:
        language_model: the model; if it is not given, ``model`` is loaded.
        model: a folder, a name on the hub, a bundled model, or a server's address. Default: the environment variable
            ANTIPHON_MODEL.
        model_kwargs: arguments with which ``model`` is loaded.
        max_tokens, temperature, top_p, top_k, min_p, repetition_penalty, seed, drafter, num_draft_tokens, thinking,
            max_thinking_tokens, template_variables, stop: see `antiphon.accel.text.parameters.Settings`, whose
            defaults apply if they are None.
        timeout: seconds for an answer; None is no limit.
        max_retries, api_key: accepted because frameworks pass them to every model, and ignored.

    Raises:
        ValueError: no model was given, or a field does not exist.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    language_model: SkipValidation[TextModel] = Field(exclude=True, repr=False)
    model: str = ""
    model_kwargs: dict[str, Any] = Field(default_factory=dict)
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    drafter: Any = None
    num_draft_tokens: int | None = None
    thinking: bool | None = None
    max_thinking_tokens: int | None = None
    template_variables: dict[str, Any] | None = None
    stop: list[str] | None = None
    timeout: float | None = None
    max_retries: int | None = None
    api_key: SecretStr | None = None

    _other_models: dict[str, TextModel] = PrivateAttr(default_factory=dict)
    _is_loaded: bool = PrivateAttr(default=False)
    _has_warned: bool = PrivateAttr(default=False)

    @model_validator(mode="before")
    @classmethod
    def _load(cls, values: dict[str, Any]) -> dict[str, Any]:
        values = dict(values)
        if "max_completion_tokens" in values:
            values.setdefault("max_tokens", values.pop("max_completion_tokens"))
        if values.get("language_model") is None:
            values["model"] = values.get("model") or os.environ.get(MODEL_VARIABLE)
            if not values["model"]:
                raise ValueError(
                    f"No model was given; pass language_model=, or model= with a name to load, or set {MODEL_VARIABLE}."
                )
            values["language_model"] = _load_model(values["model"], values.get("model_kwargs") or {})
        values["model"] = values.get("model") or values["language_model"].name
        return values

    @model_validator(mode="wrap")
    @classmethod
    def _record_loading(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        created = handler(values)
        if isinstance(values, Mapping):
            created._is_loaded = values.get("language_model") is None
        return created

    def __getstate__(self) -> dict[Any, Any]:
        """Return the state without the language model, which is loaded again by name.

        Raises:
            TypeError: the model was passed as an object.
        """
        if not self._is_loaded:
            raise TypeError(
                f"{type(self).__name__} was given a language_model, which cannot be pickled; pass model= with a name "
                "instead, which is loaded again, or create the object again."
            )
        without_model = self.model_copy(update={"language_model": None})
        without_model._other_models = {}
        state: dict[Any, Any] = super(GenerationFields, without_model).__getstate__()
        return state

    def __setstate__(self, state: dict[Any, Any]) -> None:
        """Restore the state and load the model by name."""
        BaseModel.__setstate__(self, state)  # LlamaIndex's own method would load a second model
        self.language_model = _load_model(self.model, self.model_kwargs)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return a copy that shares the language models."""
        for language_model in (self.language_model, *self._other_models.values()):
            memo = memo_sharing(language_model, memo)
        return BaseModel.__deepcopy__(self, memo)

    def language_model_named(self, model: str | None) -> TextModel:
        """Return the model with this name; a model other than the default is loaded at its first use."""
        if model in (None, self.model):
            return self.language_model
        with _LOADING:
            if model not in self._other_models:
                self._other_models[model] = _load_model(model, self.model_kwargs)
            return self._other_models[model]

    def check_prompt(self, texts: Iterable[str]) -> None:
        """Warn once if a model like `reader` receives a prompt in another format than its own."""
        prompt_format = self.language_model.prompt_format
        if prompt_format == "reader" and not self._has_warned and not any(READER_SYSTEM in text for text in texts):
            self._has_warned = True
            warnings.warn(
                f"The model {self.model!r} needs the prompt format 'reader' and answers badly to any other: use "
                "with_retriever(retriever) in LangChain, text_qa_template=llm.prompt_template() in LlamaIndex, or a "
                "model that follows instructions.",
                stacklevel=2,
            )

    def cache_parameters(self) -> dict[str, Any]:
        """Return the model's name and the parameters that were set: the key of a framework's cache."""
        given = {name: getattr(self, name) for name in (*PARAMETERS, "stop")}
        return {"model": self.model, **{name: value for name, value in given.items() if value is not None}}

    def parameters(self, stop: Sequence[str] | None, given: Mapping[str, Any]) -> tuple[dict[str, Any], float | None]:
        """Merge the fields and the arguments of one call.

        Args:
            stop: stop strings of the call; None uses the field.
            given: the other arguments of the call.

        Returns:
            Keyword arguments of `LanguageModel.stream`, and the timeout in seconds.

        Raises:
            TypeError: a parameter does not exist, or the maximum length is given twice.
        """
        known = {*PARAMETERS, *PARAMETER_NAMES, *PARAMETER_NAMES.values(), *CALL_PARAMETERS}
        if unknown := given.keys() - known:
            raise TypeError(f"There is no parameter {min(unknown)!r}; known are {', '.join(sorted(known))} and stop.")
        merged = {name: value for name, value in self.cache_parameters().items() if name in PARAMETERS}
        if length := given.keys() & LENGTH_NAMES:
            merged.pop("max_tokens", None)
        if len(length) > 1:
            raise TypeError(f"{' and '.join(sorted(length))} mean the same; give one of them.")
        merged |= dict(given)
        timeout = merged.pop("timeout", self.timeout)
        named = {PARAMETER_NAMES.get(name, name): value for name, value in merged.items()}
        named["stop"] = tuple(self.stop or ()) if stop is None else tuple(stop)
        return named, timeout


def _load_model(model: str, settings: Mapping[str, Any]) -> TextModel:
    if model.startswith(("http://", "https://")):
        from antiphon.accel import RemoteLanguageModel  # needs the extra `remote`, which local models do not

        address, _, name = model.partition("#")
        return RemoteLanguageModel(address, name or None, **settings)
    return LanguageModel.from_pretrained(resolve_model(model), **settings)
