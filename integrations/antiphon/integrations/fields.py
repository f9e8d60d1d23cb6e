"""What a framework's language model is told when it is made, and may be told again in every call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, SkipValidation, model_validator

from antiphon.accel import LanguageModel
from antiphon.pipelines import resolve_model

NAMES = {"max_tokens": "max_new_tokens"}
"""The frameworks' word for a parameter, and that of `antiphon.accel.parameters.Settings`; all others are the same."""

PARAMETERS = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "seed",
    "drafter",
    "rows",
)


class GenerationFields(BaseModel):
    """A language model and how it generates, unless a call says otherwise; what is None is as `Settings` has it.

    Give the ``language_model``, or the ``model``'s name (a folder, a name on the hub, or an embedded model), which is
    then loaded with ``model_kwargs``. ``timeout`` is in seconds. ``max_retries`` and ``api_key`` are taken because
    frameworks hand them to any model; a local one has nothing to retry and asks for no key.

    Raises:
        ValueError: neither was given, or there is no field of a name.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    language_model: SkipValidation[LanguageModel] = Field(exclude=True, repr=False)
    model: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    drafter: Any = None
    rows: int | None = None
    stop: list[str] | None = None
    timeout: float | None = None
    max_retries: int | None = None
    api_key: SecretStr | None = None

    @model_validator(mode="before")
    @classmethod
    def _load(cls, values: dict[str, Any]) -> dict[str, Any]:
        values = dict(values)
        settings = values.pop("model_kwargs", None) or {}
        if values.get("language_model") is None:
            if not values.get("model"):
                raise ValueError("No model was given; pass language_model=, or model= with a name to load.")
            values["language_model"] = LanguageModel.from_pretrained(resolve_model(values["model"]), **settings)
        values["model"] = values.get("model") or values["language_model"].name
        return values

    def told(self) -> dict[str, Any]:
        """The model's name and the parameters that were given, as they were given: what a cache goes by."""
        given = {name: getattr(self, name) for name in (*PARAMETERS, "stop")}
        return {"model": self.model, **{name: value for name, value in given.items() if value is not None}}

    def parameters(self, stop: Sequence[str] | None, given: Mapping[str, Any]) -> tuple[dict[str, Any], float | None]:
        """The parameters of one call, as `LanguageModel` calls them, and its timeout.

        Raises:
            TypeError: there is no parameter of a name.
        """
        known = {*PARAMETERS, *NAMES.values(), "timeout"}
        if unknown := given.keys() - known:
            raise TypeError(f"There is no parameter {min(unknown)!r}; known are {', '.join(sorted(known))} and stop.")
        told = {name: value for name, value in self.told().items() if name in PARAMETERS} | dict(given)
        timeout = told.pop("timeout", self.timeout)
        named = {NAMES.get(name, name): value for name, value in told.items()}
        named["stop"] = tuple(self.stop or ()) if stop is None else tuple(stop)
        return named, timeout
