"""What may be asked of a language model for one text, checked at the door. Knows no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from antiphon.accel.decoding.grammar import JsonSchema
from antiphon.accel.drafting.draft import DrafterFactory
from antiphon.accel.drafting.drafters.recycling_table import RecyclingTable

MAX_LOGPROBS = 20
"""How many of the most probable tokens can be told for each token, as in OpenAI's API."""

_LOGPROBS = f"None, or from 0 to {MAX_LOGPROBS}"


class Parameters(TypedDict, total=False):
    """How to generate one text; what is left out has the default of `Settings`."""

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    stop: str | Sequence[str]
    seed: int | None
    drafter: str | DrafterFactory | None
    num_draft_tokens: int | None
    recycling: bool | RecyclingTable | None
    json_schema: Mapping[str, Any] | JsonSchema | None
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None
    logprobs: int | None
    response_prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to generate one text.

    ``temperature`` 0 is greedy; above it the next token is drawn after ``top_k`` (0: all), ``top_p`` and ``min_p`` have
    cut the distribution, from a random state of this request's own: the same ``seed`` gives the same text, with and
    without drafts, and torch's global state is never touched. The text ends before the first ``stop`` string.
    ``drafter``, ``num_draft_tokens`` and ``recycling`` (False: none; a table: this one) replace the language model's own.
    With a ``json_schema`` the text is JSON that follows it, whole before ``max_new_tokens`` are spent.

    Once the text has a token, ``presence_penalty`` is taken from its score, and ``frequency_penalty`` as often as the
    text has it; ``logit_bias`` is added to the scores of the tokens that it names (as OpenAI's API defines the three).
    With ``logprobs`` each token comes with the logarithm of its probability, and with so many of the most probable
    ones: those of the model's own scores, before anything here has changed them.
    The text starts with ``response_prefix``, whatever the model would have generated, and continues freely.

    Raises:
        ValueError: a parameter is out of range.
        TypeError: a stop string is not text, or there is no parameter of that name.
    """

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: str | Sequence[str] = ()
    seed: int | None = None
    drafter: str | DrafterFactory | None = None
    num_draft_tokens: int | None = None
    recycling: bool | RecyclingTable | None = None
    json_schema: Mapping[str, Any] | JsonSchema | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    logprobs: int | None = None
    response_prefix: str = ""

    def __post_init__(self) -> None:
        tokens, top_k, seed = self.max_new_tokens, self.top_k, self.seed
        penalty = self.repetition_penalty
        check("temperature", self.temperature, 0 <= self.temperature < float("inf"), "0 (greedy) or more")
        check("top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1 (off)")
        check("top_k", top_k, isinstance(top_k, int) and top_k >= 0, "0 (off) or more")
        check("min_p", self.min_p, 0 <= self.min_p <= 1, "from 0 (off) to 1")
        check("repetition_penalty", penalty, 0 < penalty < float("inf"), "above 0; 1 is off")
        check("max_new_tokens", tokens, isinstance(tokens, int) and tokens > 0, "1 or more")
        is_seed = seed is None or (isinstance(seed, int) and 0 <= seed < 2**63)
        check("seed", seed, is_seed, "None, or from 0 to 2**63 - 1")
        schema = self.json_schema
        check("json_schema", schema, schema is None or isinstance(schema, Mapping | JsonSchema), "a mapping, or None")
        check("stop", self.stop, all(self.stop_strings), "texts of at least one character")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            check(name, value, -2 <= value <= 2, "from -2 to 2; 0 is off")
        is_free = not self.response_prefix or schema is None
        check(
            "response_prefix",
            self.response_prefix,
            isinstance(self.response_prefix, str) and is_free,
            "a text, and empty beside a json_schema",
        )
        bias = self.logit_bias or {}
        check("logit_bias", bias, all(-100 <= value <= 100 for value in bias.values()), "numbers from -100 to 100")
        count = self.logprobs
        check("logprobs", count, count is None or (isinstance(count, int) and 0 <= count <= MAX_LOGPROBS), _LOGPROBS)

    @property
    def stop_strings(self) -> list[str]:
        """The stop strings, as a list."""
        return check_texts("stop", (self.stop,) if isinstance(self.stop, str) else self.stop)

    @property
    def is_sampled(self) -> bool:
        """Whether tokens are drawn."""
        return self.temperature > 0

    @property
    def generate_kwargs(self) -> dict[str, Any]:
        """The same for `generate`; they leave nothing of the model's own habits in force."""
        return {
            "do_sample": self.is_sampled,
            "temperature": self.temperature if self.is_sampled else 1.0,
            "top_p": self.top_p if self.is_sampled else 1.0,
            "top_k": self.top_k if self.is_sampled else 50,  # what transformers takes for unset
            "min_p": self.min_p if self.is_sampled and self.min_p else None,
            "repetition_penalty": self.repetition_penalty,
            "typical_p": 1.0,
            "epsilon_cutoff": 0.0,
            "eta_cutoff": 0.0,
            "num_beams": 1,
            "num_return_sequences": 1,
            "use_cache": True,
            "return_dict_in_generate": self.logprobs is not None,
            "output_logits": self.logprobs is not None,
        }


def check(name: str, value: object, holds: bool, range_: str) -> None:
    """Refuse a value that is out of range, with its name."""
    if not holds:
        raise ValueError(f"{name} is {value!r}; it must be {range_}.")


def check_texts(name: str, given: Sequence[str]) -> list[str]:
    """A list of texts; one text alone, whose characters would be taken for texts, is refused, as is anything else."""
    if isinstance(given, str):
        raise TypeError(f"{name} is one text of {len(given)} characters; give a list of texts.")
    for index, text in enumerate(given):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{index}] is of type {type(text).__name__}; give texts (str).")
    return list(given)
