"""Parameters of a request to a language model, and their validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from antiphon.accel.constraints.json_schema import JsonSchema
from antiphon.accel.drafting.draft import DrafterFactory
from antiphon.accel.drafting.drafters.recycling_table import RecyclingTable

MAX_LOGPROBS = 20
"""Maximum number of alternatives per token in ``logprobs``, as in OpenAI's API."""

MIN_TEMPERATURE = 1e-6
"""Minimum temperature of sampling. Below it, the best token is certain and float32 overflows."""

_LOGPROBS = f"None, or from 0 to {MAX_LOGPROBS}"


class ContextLengthError(ValueError):
    """A prompt fills the context window of the model, or exceeds it."""


class Parameters(TypedDict, total=False):
    """Keyword arguments of `generate` and `stream`; see `Settings` for their meaning and defaults."""

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
    stop_token_ids: Sequence[int]
    min_new_tokens: int
    ignore_eos: bool
    thinking: bool | None
    max_thinking_tokens: int | None
    template_variables: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The parameters of one completion, validated when the object is created.

    Each request has its own random state; torch's global state is not used. The same seed gives the same completion,
    with and without drafts.

    Attributes:
        max_new_tokens: Maximum number of generated tokens.
        temperature: Below `MIN_TEMPERATURE`, decoding is greedy; otherwise tokens are sampled.
        top_p: Sample from the most likely tokens of this total probability; 1 is off.
        top_k: Sample from this number of most likely tokens; 0 is off.
        min_p: Sample from tokens of at least this share of the highest probability; 0 is off.
        repetition_penalty: Divides the scores of tokens that have occurred, as in transformers; 1 is off.
        stop: Stop strings. The completion ends before the first one.
        seed: Random seed; None for a random one.
        drafter: Drafter of this request, by name or as a factory; None: the language model's drafter.
        num_draft_tokens: Fixed number of draft rows per step; None: adapted to costs and acceptance rates.
        recycling: The recycling table to use; False: no table; None: the language model's table.
        json_schema: The completion is JSON that follows this schema, complete within ``max_new_tokens``.
        presence_penalty: Subtracted from the scores of tokens that the completion contains, from -2 to 2.
        frequency_penalty: Subtracted from the score of a token once for each of its occurrences in the completion,
            from -2 to 2.
        logit_bias: Added to the scores of the given token ids, from -100 to 100. This bias and the
            two penalties are defined as in OpenAI's API.
        logprobs: Return the log-probability of each token and of this number of most likely
            alternatives. They are computed from the model's own scores, before penalties,
            temperature and other parameters change the scores.
        response_prefix: Text with which the completion starts. It is appended to the prompt, and
            both are tokenized together. It is not generated, and ``max_new_tokens`` does not
            include it. With a ``json_schema``, prefix and generated text together follow the
            schema.
        stop_token_ids: Further token ids that end the completion, besides the model's own end tokens.
        min_new_tokens: No end token is generated before this number of tokens; 0 is off.
        ignore_eos: Generate up to the maximum length; end tokens do not end the completion.
        thinking: Whether the model thinks before it answers messages; None: the default of its chat template. It has
            no effect on a template without a switch, on a text, and on a tokenized prompt.
        max_thinking_tokens: Maximum tokens of the thinking; at this limit the end mark of the
            thinking is forced. ``max_new_tokens`` then limits only the answer. 0: the thinking is
            ended at once. None: ``max_new_tokens`` limits thinking and answer together; with a
            ``json_schema``, the thinking gets at most half of these tokens.
        template_variables: Further variables of the chat template, such as ``reasoning_effort``.

    Raises:
        ValueError: A parameter is out of range.
        TypeError: A stop string is not a text, or an unknown parameter is given.
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
    stop_token_ids: Sequence[int] = ()
    min_new_tokens: int = 0
    ignore_eos: bool = False
    thinking: bool | None = None
    max_thinking_tokens: int | None = None
    template_variables: Mapping[str, Any] = field(default_factory=dict)

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
        check("response_prefix", self.response_prefix, isinstance(self.response_prefix, str), "a text")
        bias = self.logit_bias or {}
        check("logit_bias", bias, all(-100 <= value <= 100 for value in bias.values()), "numbers from -100 to 100")
        count = self.logprobs
        check("logprobs", count, count is None or (isinstance(count, int) and 0 <= count <= MAX_LOGPROBS), _LOGPROBS)
        self._check_end()
        most, variables = self.max_thinking_tokens, self.template_variables
        check("thinking", self.thinking, self.thinking is None or isinstance(self.thinking, bool), "a bool, or None")
        is_count = most is None or (isinstance(most, int) and not isinstance(most, bool) and most >= 0)
        check("max_thinking_tokens", most, is_count, "0 or more, or None")
        check("template_variables", variables, isinstance(variables, Mapping), "a mapping")

    def _check_end(self) -> None:
        ids, least, schema = self.stop_token_ids, self.min_new_tokens, self.json_schema
        is_list = not isinstance(ids, str) and all(isinstance(token, int) and token >= 0 for token in ids)
        check("stop_token_ids", ids, is_list, "token ids of 0 or more")
        is_length = isinstance(least, int) and 0 <= least <= self.max_new_tokens
        check("min_new_tokens", least, is_length, "from 0 (off) to max_new_tokens")
        for name in ("min_new_tokens", "ignore_eos"):  # a completed JSON text can only end
            check(name, getattr(self, name), schema is None or not getattr(self, name), "left out with a json_schema")
        if least:
            check("ignore_eos", self.ignore_eos, not self.ignore_eos, "left out with min_new_tokens")

    @property
    def stop_strings(self) -> list[str]:
        """The stop strings as a list."""
        return check_texts("stop", (self.stop,) if isinstance(self.stop, str) else self.stop)

    @property
    def answer_schema(self) -> JsonSchema | None:
        """The JSON schema of the whole answer, including the response prefix; None without a schema."""
        if self.json_schema is None:
            return None
        given = self.json_schema if isinstance(self.json_schema, JsonSchema) else JsonSchema(self.json_schema)
        return replace(given, begun=given.begun + self.response_prefix)

    @property
    def is_sampled(self) -> bool:
        """Whether tokens are sampled."""
        return self.temperature >= MIN_TEMPERATURE

    @property
    def changes_scores(self) -> bool:
        """Whether greedy decoding needs changed scores or log-probabilities, and not only the most likely token."""
        penalties = self.presence_penalty, self.frequency_penalty, self.repetition_penalty - 1, self.logit_bias
        return any(penalties) or self.json_schema is not None or self.logprobs is not None or self.min_new_tokens > 0

    @property
    def generate_kwargs(self) -> dict[str, Any]:
        """The parameters as arguments of `generate`; they override all defaults of the model's generation config."""
        return {
            "do_sample": self.is_sampled,
            "temperature": self.temperature if self.is_sampled else 1.0,
            "top_p": self.top_p if self.is_sampled else 1.0,
            "top_k": self.top_k if self.is_sampled else 50,  # transformers' default
            "min_p": self.min_p if self.is_sampled and self.min_p else None,
            "repetition_penalty": self.repetition_penalty,
            "typical_p": 1.0,
            "epsilon_cutoff": 0.0,
            "eta_cutoff": 0.0,
            "num_beams": 1,
            "num_return_sequences": 1,
            "use_cache": True,
            "min_new_tokens": self.min_new_tokens or None,
            "return_dict_in_generate": self.logprobs is not None,
            "output_logits": self.logprobs is not None,
        }


def check(name: str, value: object, holds: bool, range_: str) -> None:
    """Raise an error that names a parameter if its value is invalid.

    Raises:
        ValueError: The value is invalid.
    """
    if not holds:
        raise ValueError(f"{name} is {value!r}; it must be {range_}.")


def split_batch(
    prompts: Sequence[Any], references: Sequence[Any], seeds: Sequence[int] | None, batch_size: int, settings: Settings
) -> list[tuple[Any, Any, Settings]]:
    """Return, for each request of a batch, its prompt, references and settings.

    Raises:
        ValueError: ``prompts`` is a single text, the batch size is not positive, or the number of
            references or seeds differs from the number of prompts.
    """
    check("prompts", prompts, not isinstance(prompts, str), "a list of prompts")
    check("batch_size", batch_size, isinstance(batch_size, int) and batch_size > 0, "1 or more")
    count = len(prompts)
    own_settings = [replace(settings, seed=seed) for seed in seeds] if seeds else [settings] * count
    own_references = list(references) or [()] * count
    for name, items in (("references", own_references), ("seeds", own_settings)):
        check(f"The number of {name}", len(items), len(items) == count, f"{count}, one for each prompt")
    return list(zip(prompts, own_references, own_settings, strict=True))


def check_texts(name: str, given: Sequence[str]) -> list[str]:
    """Check a parameter that is a list of texts, and return it as a list.

    Raises:
        TypeError: The parameter is a single text in place of a list, or an item is not a text.
    """
    if isinstance(given, str):
        raise TypeError(f"{name} is one text of {len(given)} characters; give a list of texts.")
    for index, text in enumerate(given):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{index}] is of type {type(text).__name__}; give texts (str).")
    return list(given)
