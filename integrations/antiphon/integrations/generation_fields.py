"""Constructor fields and call parameters that the LangChain and LlamaIndex models share."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Lock
from types import MappingProxyType
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, SkipValidation

from antiphon.accel import TextModel
from antiphon.accel.text.messages import Message, PromptInput
from antiphon.accel.text.parameters import Parameters
from antiphon.accel.text.tool_choice import prepare_tools, with_instruction
from antiphon.integrations.model_call import ModelCall
from antiphon.integrations.references import REFERENCES
from antiphon.pipelines.extractive_model import text_model
from antiphon.pipelines.prompt import check_prompt
from antiphon.retrieval import Passage

LENGTHS = ("max_tokens", "max_completion_tokens", "max_new_tokens")
"""The parameter names for the maximum answer length: two of the frameworks, and one of `Settings`."""

KNOWN = {*LENGTHS, *Parameters.__annotations__, "timeout"} - {"logprobs"}
"""The parameters of a call. ``logprobs`` is excluded: the frameworks' answers have no field for it."""

DESCRIBE_SCHEMA = "describe_schema"
"""The argument of a call that describes its ``json_schema`` to the model."""

NUM_MARKED = "num_marked"
"""The argument of a call that says how many of the first references the answer can cite by markers."""

MODEL_VARIABLE = "ANTIPHON_MODEL"
"""The environment variable with the default model."""

NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})

LOADED_BY_NAME: Any = None
"""The default of ``language_model``; the constructor replaces it with a loaded model."""

_LOADING = Lock()  # so that several threads load the same model only once


class GenerationFields(BaseModel):
    """A language model and its default generation parameters, which a call can override.

    Attributes:
        language_model: the model; if it is not given, ``model`` is loaded.
        model: a folder, a name on the hub, a bundled model, or a server's address. Default: the environment variable
            ANTIPHON_MODEL.
        model_kwargs: arguments with which ``model`` is loaded.
        max_tokens, temperature, top_p, top_k, min_p, repetition_penalty, seed, drafter,
            num_draft_tokens, thinking, max_thinking_tokens, template_variables, stop: see
            `antiphon.accel.text.parameters.Settings`. For a field that is None, the default of
            `Settings` applies.
        timeout: seconds for an answer; None is no limit.
        max_retries, api_key: ignored; accepted because frameworks pass them to every model.

    Raises:
        ValueError: no model was given, or a field does not exist.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    language_model: SkipValidation[TextModel] = Field(default=LOADED_BY_NAME, exclude=True, repr=False)
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

    def __init__(self, **values: Any) -> None:
        is_loaded = values.get("language_model") is None
        if "max_completion_tokens" in values:
            values.setdefault("max_tokens", values.pop("max_completion_tokens"))
        if is_loaded:
            values["model"] = values.get("model") or os.environ.get(MODEL_VARIABLE)
            if not values["model"]:
                raise ValueError(
                    f"No model was given; pass language_model=, or model= with a name to load, or set {MODEL_VARIABLE}."
                )
            values["language_model"] = text_model(values["model"], **(values.get("model_kwargs") or {}))
        values["model"] = values.get("model") or values["language_model"].name
        super().__init__(**values)
        self._is_loaded = is_loaded

    def __getstate__(self) -> dict[Any, Any]:
        """Return the state without the language model; `__setstate__` loads the model again by name.

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
        self.language_model = text_model(self.model, **self.model_kwargs)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return a copy that shares the language models."""
        models = (self.language_model, *self._other_models.values())
        return BaseModel.__deepcopy__(self, {**(memo or {}), **{id(model): model for model in models}})

    def language_model_named(self, model: str) -> TextModel:
        """Return the model with this name. A model other than the default is loaded when it is first used."""
        if model == self.model:
            return self.language_model
        with _LOADING:
            if model not in self._other_models:
                self._other_models[model] = text_model(model, **self.model_kwargs)
            return self._other_models[model]

    def cache_parameters(self) -> dict[str, Any]:
        """Return the model's name and all parameters that are set; frameworks use them as a cache key."""
        names = ("model", "max_tokens", *(name for name in Parameters.__annotations__ if name in self.__dict__))
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def chat_call(
        self, messages: Sequence[Message], passages: tuple[Passage, ...], given: Mapping[str, Any]
    ) -> ModelCall:
        """Return a call with messages.

        Args:
            given: the arguments of the call: ``tools`` (in OpenAI's format), ``tool_choice``,
                ``parallel_tool_calls``, `DESCRIBE_SCHEMA`, and all arguments that `text_call`
                accepts.

        Raises:
            TypeError: a parameter does not exist, or two parameters give the maximum length.
            ValueError: a tool choice names no tool, or the chat template does not support tools.
        """
        given = dict(given)
        tools, choice = given.pop("tools", None) or (), given.pop("tool_choice", None)
        is_parallel = given.pop("parallel_tool_calls", None) is not False
        if given.pop(DESCRIBE_SCHEMA, False):
            schema = json.dumps(given["json_schema"], ensure_ascii=False)
            start = "Call a tool, or answer" if tools else "Answer"
            messages = with_instruction(messages, f"{start} in JSON that follows this schema:\n{schema}")
        model = self.language_model_named(given.get("model") or self.model)
        prompt, schemas, answer = prepare_tools(model.tokenizer, messages, tools, choice, given.get("json_schema"))
        if answer is not None:
            given["json_schema"] = answer
        return replace(
            self.text_call(prompt, passages, given),
            tools=schemas,
            assistant_prefix=prompt.assistant_prefix,
            allows_parallel_calls=is_parallel,
        )

    def text_call(self, prompt: PromptInput, passages: tuple[Passage, ...], given: Mapping[str, Any]) -> ModelCall:
        """Return a call with a prompt.

        Args:
            given: the arguments of the call, which may include `NUM_MARKED`; they override the
                fields. ``references`` is ignored.

        Raises:
            TypeError: a parameter does not exist, or two parameters give the maximum length.
            ValueError: the timeout is not positive.
            RuntimeError: the model only answers questions from documents.
        """
        given = {name: value for name, value in given.items() if name != REFERENCES}
        name = given.pop("model", None) or self.model
        model = self.language_model_named(name)
        check_prompt(model, prompt)
        timeout = given.pop("timeout", self.timeout)
        if timeout is not None and timeout <= 0:
            raise ValueError(f"timeout is {timeout}; it must be above 0 seconds.")
        marked = {NUM_MARKED: given.pop(NUM_MARKED, 0)}
        return ModelCall(model, name, prompt, passages, self.stream_options(given), timeout, **marked)

    def stream_options(self, given: Mapping[str, Any] = NO_ARGUMENTS) -> dict[str, Any]:
        """Merge the fields and the arguments of a call into keyword arguments of `LanguageModel.stream`."""
        if unknown := given.keys() - KNOWN:
            raise TypeError(f"There is no parameter {min(unknown)!r}; known are {', '.join(sorted(KNOWN))}.")
        lengths = sorted(given.keys() & set(LENGTHS))
        if len(lengths) > 1:
            raise TypeError(f"{' and '.join(lengths)} mean the same; give one of them.")
        fields = {name: value for name, value in self.cache_parameters().items() if name != "model"}
        if lengths:
            fields.pop("max_tokens", None)
        stop = given.get("stop")
        merged = {**fields, **given, "stop": self.stop or () if stop is None else stop}
        return {"max_new_tokens" if name in LENGTHS else name: value for name, value in merged.items()}
