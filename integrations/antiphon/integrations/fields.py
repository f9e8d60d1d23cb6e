"""What a framework's language model is told when it is made, and may be told again in every call."""

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

from antiphon.accel import LanguageModel, RemoteLanguageModel, TextModel
from antiphon.integrations.pickled import shared
from antiphon.pipelines import resolve_model
from antiphon.pipelines.prompt import READER_SYSTEM

NAMES = {"max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens"}
"""The frameworks' words for a parameter, and that of `Settings`; all others are the same."""

LENGTH = {*NAMES, *NAMES.values()}
"""The words for how long an answer may be."""

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
)

IN_A_CALL = ("presence_penalty", "frequency_penalty", "logit_bias", "response_prefix", "json_schema", "timeout")
"""What one call alone may be told, beside all others."""

MODEL = "ANTIPHON_MODEL"
"""The environment variable that names the model where nothing else does."""

_LOADING = Lock()  # two threads that want the same model wait for one of it


class GenerationFields(BaseModel):
    """A language model and how it generates, unless a call says otherwise; what is None is as `Settings` has it.

    Give the ``language_model``, or the ``model``'s name (a folder, a name on the hub, an embedded model, or a server's
    address; by default what the environment's ANTIPHON_MODEL says), which is then loaded with ``model_kwargs``.
    ``timeout`` is in seconds. ``max_retries`` and ``api_key`` are taken because frameworks hand them to any model; a
    local one has nothing to retry and asks for no key, and one on a server has its own.

    Raises:
        ValueError: no model was given, or there is no field of a name.
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
    stop: list[str] | None = None
    timeout: float | None = None
    max_retries: int | None = None
    api_key: SecretStr | None = None

    _others: dict[str, TextModel] = PrivateAttr(default_factory=dict)
    _is_loaded: bool = PrivateAttr(default=False)
    _has_warned: bool = PrivateAttr(default=False)

    @model_validator(mode="before")
    @classmethod
    def _load(cls, values: dict[str, Any]) -> dict[str, Any]:
        values = dict(values)
        if "max_completion_tokens" in values:
            values.setdefault("max_tokens", values.pop("max_completion_tokens"))
        if values.get("language_model") is None:
            values["model"] = values.get("model") or os.environ.get(MODEL)
            if not values["model"]:
                raise ValueError(
                    f"No model was given; pass language_model=, or model= with a name to load, or set {MODEL}."
                )
            values["language_model"] = _loaded(values["model"], values.get("model_kwargs") or {})
        values["model"] = values.get("model") or values["language_model"].name
        return values

    @model_validator(mode="wrap")
    @classmethod
    def _note(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        made = handler(values)
        if isinstance(values, Mapping):
            made._is_loaded = values.get("language_model") is None
        return made

    def __getstate__(self) -> dict[Any, Any]:
        """Everything but the language model, which is loaded again by its name.

        Raises:
            TypeError: it was not loaded by its name.
        """
        if not self._is_loaded:
            raise TypeError(
                f"{type(self).__name__} was given a language_model, which no pickle holds; make it with model= and the "
                "name of a model, which is then loaded again, or make it anew where it is needed."
            )
        bare = self.model_copy(update={"language_model": None})
        bare._others = {}
        state: dict[Any, Any] = super(GenerationFields, bare).__getstate__()
        return state

    def __setstate__(self, state: dict[Any, Any]) -> None:
        """The same again, with the model loaded by its name."""
        BaseModel.__setstate__(self, state)  # LlamaIndex's own would make a second model
        self.language_model = _loaded(self.model, self.model_kwargs)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """A copy that shares the language models."""
        for language_model in (self.language_model, *self._others.values()):
            memo = shared(language_model, memo)
        return BaseModel.__deepcopy__(self, memo)

    def named(self, model: str | None) -> TextModel:
        """The language model of this name: this one's own, or another that is loaded when it is first asked for."""
        if model in (None, self.model):
            return self.language_model
        with _LOADING:
            if model not in self._others:
                self._others[model] = _loaded(model, self.model_kwargs)
            return self._others[model]

    def check_prompt(self, texts: Iterable[str]) -> None:
        """Warn, once, where a model that was made for one form of prompt is asked in another."""
        form = self.language_model.prompt_format
        if form == "reader" and not self._has_warned and not any(READER_SYSTEM in text for text in texts):
            self._has_warned = True
            warnings.warn(
                f"The model {self.model!r} was made for the prompt format 'reader' and answers badly to any other: ask "
                "it by with_retriever(retriever) in LangChain, with text_qa_template=llm.prompt_template() in "
                "LlamaIndex, or take a model that follows instructions.",
                stacklevel=2,
            )

    def told(self) -> dict[str, Any]:
        """The model's name and the parameters that were given, as they were given: what a cache goes by."""
        given = {name: getattr(self, name) for name in (*PARAMETERS, "stop")}
        return {"model": self.model, **{name: value for name, value in given.items() if value is not None}}

    def parameters(self, stop: Sequence[str] | None, given: Mapping[str, Any]) -> tuple[dict[str, Any], float | None]:
        """The parameters of one call, as `LanguageModel` calls them, and its timeout.

        Raises:
            TypeError: there is no parameter of a name, or the length is given twice.
        """
        known = {*PARAMETERS, *NAMES, *NAMES.values(), *IN_A_CALL}
        if unknown := given.keys() - known:
            raise TypeError(f"There is no parameter {min(unknown)!r}; known are {', '.join(sorted(known))} and stop.")
        told = {name: value for name, value in self.told().items() if name in PARAMETERS}
        if length := given.keys() & LENGTH:
            told.pop("max_tokens", None)
        if len(length) > 1:
            raise TypeError(f"{' and '.join(sorted(length))} say the same; give one of them.")
        told |= dict(given)
        timeout = told.pop("timeout", self.timeout)
        named = {NAMES.get(name, name): value for name, value in told.items()}
        named["stop"] = tuple(self.stop or ()) if stop is None else tuple(stop)
        return named, timeout


def _loaded(model: str, settings: Mapping[str, Any]) -> TextModel:
    if model.startswith(("http://", "https://")):
        address, _, name = model.partition("#")
        return RemoteLanguageModel(address, name or None, **settings)
    return LanguageModel.from_pretrained(resolve_model(model), **settings)
