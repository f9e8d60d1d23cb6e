"""Text in, text out: a causal model, its tokenizer and a drafter. Knows nothing of passages: a reference is a text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from antiphon.accel.attention import EXACT
from antiphon.accel.certify import Certificate
from antiphon.accel.certify import certify as certify_output
from antiphon.accel.completion import Completion, Stream, Turns, Usage
from antiphon.accel.determinism import bucket_of, settled
from antiphon.accel.draft import DrafterFactory
from antiphon.accel.drafters import Blend, drafter_named
from antiphon.accel.generate import stream as decode_stream
from antiphon.accel.loading import check_causal, load_pretrained
from antiphon.accel.messages import Message, encode
from antiphon.accel.request import prepare

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["Certificate", "Completion", "LanguageModel", "Message", "Stream", "Usage"]


CPU_LEAST = 0.1
"""On a CPU a draft row costs 3 to 10 % of a plain step, so the default drafter leaves out rows of a smaller chance."""


class LanguageModel:
    """A causal model that continues texts and answers messages, drafting from the references it is given.

    What is drafted never changes the text, only the number of forwards. ``rows`` bounds a draft; on a CPU the default
    drafter also leaves out rows that are unlikely to pay (`CPU_LEAST`). Any number of requests may run at once, from
    any threads: they take turns forward by forward.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        drafter: str | DrafterFactory = "blend",
        rows: int = 32,
        name: str | None = None,
        deterministic: bool = False,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name or getattr(model.config, "name_or_path", "") or model.config.model_type
        self.rows = rows
        check_causal(model, self.name)
        _check("rows", rows, isinstance(rows, int) and rows >= 0, "0 (plain decoding) or more")
        self._drafter = _factory(drafter, model.device)
        self._turns = Turns()
        self._bucket = bucket_of(bool(deterministic), rows)
        if self._bucket:
            settled(model, self._bucket)
            model.set_attn_implementation(EXACT)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype = "auto",
        device_map: Any = None,
        drafter: str | DrafterFactory = "blend",
        rows: int = 32,
        deterministic: bool = False,
        **model_kwargs: Any,
    ) -> LanguageModel:
        """Load a causal model of transformers, from a folder or the hub.

        Without ``device`` it goes to a GPU if there is one; ``device_map`` ("auto" or a map) spreads it over several.
        ``dtype="auto"`` is the checkpoint's own, but float32 on a CPU without bfloat16 units. Everything else, such as
        ``quantization_config`` or ``attn_implementation``, goes to transformers as it is.

        Raises:
            ValueError: what lies there is no causal language model, or the device or drafter is unknown.
            OSError: nothing lies there, or the hub cannot be reached.
        """
        factory = _factory(drafter, None)  # an unknown one is refused before anything is loaded
        model, tokenizer = load_pretrained(
            name_or_path, device=device, dtype=dtype, device_map=device_map, **model_kwargs
        )
        name = str(name_or_path)
        return cls(model, tokenizer, drafter=factory, rows=rows, name=name, deterministic=deterministic)

    @property
    def context_window(self) -> int | None:
        """How many tokens, prompt and completion together, the model was made for; None where it sets no limit."""
        window = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        return window if isinstance(window, int) and window > 0 else None

    def generate(
        self,
        prompt: str | Sequence[Message],
        *,
        references: Sequence[str] = (),
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        stop: str | Sequence[str] = (),
        seed: int | None = None,
        drafter: str | DrafterFactory | None = None,
        rows: int | None = None,
    ) -> Completion:
        """The whole completion; see `stream`, whose pieces it joins."""
        pieces = self.stream(
            prompt,
            references=references,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            stop=stop,
            seed=seed,
            drafter=drafter,
            rows=rows,
        )
        for _ in pieces:
            pass
        return pieces.completion

    def stream(
        self,
        prompt: str | Sequence[Message],
        *,
        references: Sequence[str] = (),
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        stop: str | Sequence[str] = (),
        seed: int | None = None,
        drafter: str | DrafterFactory | None = None,
        rows: int | None = None,
    ) -> Stream:
        """Continue a text, or answer messages, piece by piece.

        A text is tokenized as the tokenizer does it, with its own special tokens; messages go through its chat
        template once. ``temperature`` 0 is greedy; above it the next token is drawn after ``top_k`` (0: all),
        ``top_p`` and ``min_p`` have cut the distribution, from a random state of this request's own: the same
        ``seed`` gives the same text, with and without drafts, and torch's global state is never touched. The text
        ends before the first ``stop`` string, at an end-of-sequence token, after ``max_new_tokens``, or where the
        context window is full.

        Raises:
            ValueError: a parameter is out of range, a message is malformed, the drafter is unknown, the tokenizer has
                no chat template, or the prompt leaves no room in the context window.
            TypeError: a reference or stop string is not text.
        """
        sampling = _sampling(temperature, top_p, top_k, min_p, repetition_penalty)
        _check("max_new_tokens", max_new_tokens, isinstance(max_new_tokens, int) and max_new_tokens > 0, "1 or more")
        _check(
            "seed", seed, seed is None or (isinstance(seed, int) and 0 <= seed < 2**63), "None, or from 0 to 2**63 - 1"
        )
        stops = _texts("stop", (stop,) if isinstance(stop, str) else stop)
        _check("stop", stop, all(stops), "texts of at least one character")
        sources = _texts("references", references)
        factory = self._drafter if drafter is None else _factory(drafter, self.model.device)
        with self._turns:
            tokens = encode(prompt, self.tokenizer)
            steps = decode_stream(
                self.model,
                **self._inputs(tokens),
                references=sources,
                drafter=factory,
                rows=self.rows if rows is None else rows,
                tokenizer=self.tokenizer,
                generator=self._generator(seed) if temperature else None,
                deterministic=self._bucket or False,
                max_new_tokens=min(max_new_tokens, self._room(len(tokens))),
                **sampling,
                **self._ends(),
            )
        chosen = (temperature, repetition_penalty)
        return Stream(steps, self.tokenizer, prompt_tokens=len(tokens), stop=stops, turns=self._turns, chosen=chosen)

    def certify(
        self,
        prompt: str | Sequence[Message],
        completion: Completion | Sequence[int] | str,
        *,
        repetition_penalty: float = 1.0,
        ulps: float | None = None,
    ) -> Certificate:
        """Prove that a greedy completion of this prompt is the model's own, whoever made it; see `certify.certify`.

        A completion knows its ``repetition_penalty``; for ids or a text it is what is given here. Of a text the ids
        are guessed, by the tokenizer: where the certificate holds it is proven all the same, where it does not, the
        answer may have been emitted in other tokens.

        Raises:
            ValueError: the completion was sampled, is empty, or does not fit.
        """
        if isinstance(completion, Completion):
            if completion.temperature:
                raise ValueError(
                    f"The completion was sampled, at temperature {completion.temperature:g}: its tokens were drawn and "
                    "need not be the best. Certify a greedy one, at temperature 0."
                )
            repetition_penalty = completion.repetition_penalty
        emitted = _ids(completion, self.tokenizer)
        with self._turns:
            tokens = encode(prompt, self.tokenizer)
            request = prepare(
                self.model,
                **self._inputs(tokens),
                max_new_tokens=max(len(emitted), 1),
                **_sampling(0.0, 1.0, 0, 0.0, repetition_penalty),
                **self._ends(),
            )
            output = [*tokens, *emitted]
            return certify_output(self.model, output, len(tokens), logits_processor=request.processors, ulps=ulps)

    def _inputs(self, tokens: Sequence[int]) -> dict[str, Any]:
        """The prompt as tensors; the mask says that a pad token in it is text."""
        ids = torch.tensor([list(tokens)], device=self.model.device)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def _room(self, prompt_tokens: int) -> int:
        """How many tokens may follow the prompt."""
        window = self.context_window
        if window is None:
            return 2**31
        if prompt_tokens >= window:
            raise ValueError(
                f"The prompt has {prompt_tokens} tokens and the context window of {self.name!r} holds {window}; "
                "shorten the prompt, or give fewer passages, so that at least one token can follow."
            )
        return window - prompt_tokens

    def _ends(self) -> dict[str, Any]:
        """The tokens that end a text: all that the model's generation settings name, else the tokenizer's one."""
        settings = self.model.generation_config
        end = settings.eos_token_id if settings and settings.eos_token_id is not None else self.tokenizer.eos_token_id
        padding = settings.pad_token_id if settings else None
        first = end[0] if isinstance(end, list) else end
        return {"eos_token_id": end, "pad_token_id": first if padding is None else padding}

    def _generator(self, seed: int | None) -> torch.Generator:
        generator = torch.Generator(self.model.device)
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        return generator


def _ids(completion: Completion | Sequence[int] | str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    if isinstance(completion, Completion):
        return list(completion.tokens)
    if isinstance(completion, str):
        return list(tokenizer.encode(completion, add_special_tokens=False))
    return list(completion)


def _sampling(temperature: float, top_p: float, top_k: int, min_p: float, repetition_penalty: float) -> dict[str, Any]:
    """Settings for `generate` that leave nothing of the model's own habits in force."""
    _check("temperature", temperature, 0 <= temperature < float("inf"), "0 (greedy) or more")
    _check("top_p", top_p, 0 < top_p <= 1, "above 0 and at most 1 (off)")
    _check("top_k", top_k, isinstance(top_k, int) and top_k >= 0, "0 (off) or more")
    _check("min_p", min_p, 0 <= min_p <= 1, "from 0 (off) to 1")
    _check("repetition_penalty", repetition_penalty, 0 < repetition_penalty < float("inf"), "above 0; 1 is off")
    is_sampled = temperature > 0
    return {
        "do_sample": is_sampled,
        "temperature": temperature if is_sampled else 1.0,
        "top_p": top_p if is_sampled else 1.0,
        "top_k": top_k if is_sampled else 50,  # what transformers takes for unset
        "min_p": min_p if is_sampled and min_p else None,
        "repetition_penalty": repetition_penalty,
        "typical_p": 1.0,
        "epsilon_cutoff": 0.0,
        "eta_cutoff": 0.0,
        "num_beams": 1,
        "use_cache": True,
    }


def _check(name: str, value: object, holds: bool, range_: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {value!r}; it must be {range_}.")


def _texts(name: str, texts: Sequence[str]) -> list[str]:
    if isinstance(texts, str):
        raise TypeError(f"{name} is one text of {len(texts)} characters; give a list of texts.")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{index}] is of type {type(text).__name__}; give texts (str).")
    return list(texts)


def _factory(drafter: str | DrafterFactory, device: torch.device | None) -> DrafterFactory:
    factory = drafter_named(drafter) if isinstance(drafter, str) else drafter
    return partial(Blend, least=CPU_LEAST) if factory is Blend and device and device.type == "cpu" else factory
