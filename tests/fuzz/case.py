"""One request as plain values, and a hypothesis strategy that draws one. Runs nothing."""

import os
from dataclasses import dataclass
from functools import partial
from typing import Any

from hypothesis import strategies as st

from antiphon.accel.drafting.draft import DrafterFactory
from antiphon.accel.drafting.drafters import DRAFTERS, WINDOW, Blend
from antiphon.accel.engines.openvino.runtime import is_installed
from antiphon.accel.engines.selection import EngineName
from tests.accel.adversarial_heads import AdversarialHead
from tests.families.table import STATES
from tests.tiny import EOS, FAMILIES, VOCAB_SIZE

HEADS = ("random", "right", "nan", "wrong")
FACTORIES: dict[str, DrafterFactory] = {
    **DRAFTERS,
    "blend+lookahead": partial(Blend, window=WINDOW),
    **{f"blend+{kind} head": partial(Blend, head=AdversarialHead(kind)) for kind in HEADS},
}
"""The drafters of the cases, by name."""

DRAFTERS_OF_CASES = [name for name in os.environ.get("FUZZ_DRAFTERS", "").split(",") if name] or [
    *["script"] * 3,
    *sorted(FACTORIES),
]
"""Drafters to draw from; the environment variable names others, separated by commas."""

TRUTH = -1
"""In a script: the token of plain decoding at this depth, if the row's ancestors are correct."""

Script = tuple[tuple[int, int, float], ...]
"""A draft relative to plain decoding. Each row: distance to its parent's row, its token or TRUTH, its chance."""

FAMILIES_OF_CASES = os.environ.get("FUZZ_FAMILIES", "").split() or (*FAMILIES, *STATES)
"""Families to draw from; the environment variable names others, separated by spaces."""

ENGINES: tuple[EngineName, ...] = ("torch", "torch", "openvino") if is_installed() else ("torch",)
"""Engines to draw from: every third case uses OpenVINO if it is installed and supports the model."""

_DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
_LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 40}
_TRAINED = {"original_max_position_embeddings": 40, "max_position_embeddings": 160}

SIZES: dict[str, tuple[dict[str, Any], ...]] = {
    "llama": (
        {"num_hidden_layers": 1, "num_key_value_heads": 1},
        {"rope_parameters": _DYNAMIC, "max_position_embeddings": 40},
    ),
    "qwen3": ({"num_hidden_layers": 3, "num_key_value_heads": 4},),
    "mistral": ({"sliding_window": 3, "num_hidden_layers": 3}, {"sliding_window": 30}),
    "gemma3": ({"sliding_window": 5}, {"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"]}),
    "phi3": (
        {"num_hidden_layers": 3, "num_key_value_heads": 1},
        {"rope_parameters": _LONG | {"long_factor": [4.0] * 8, "short_factor": [1.0] * 8}, **_TRAINED},
    ),
    "gpt2": ({"n_layer": 1, "n_head": 1}, {"n_embd": 48, "n_layer": 3}),
    "mixtral": ({"num_local_experts": 3, "num_experts_per_tok": 1},),
    "qwen3_moe": ({"num_experts": 6, "num_hidden_layers": 1},),
    "qwen3_5": ({"linear_num_value_heads": 2, "linear_conv_kernel_dim": 2},),
    "lfm2": ({"conv_L_cache": 5, "conv_bias": True},),
    "mamba2": ({"n_groups": 4, "conv_kernel": 3},),
}
"""Further shapes of a family: one layer or three, other heads, windows and rotary embeddings."""


@dataclass(frozen=True, slots=True)
class Case:
    """A request and its drafts; its ``repr`` is Python code that creates it again.

    Attributes:
        draw: seed of a sampled request; None: greedy.
        settings: passed to `generate` unchanged.
        alphabet: the only allowed tokens; empty: all.
        moods: names of further logits processors.
        door: the interface that decodes it.
    """

    family: str = "llama"
    size: int = 0
    seed: int = 0
    attention: str = "sdpa"
    prompt: tuple[int, ...] = (1,)
    padding: int = 0
    chunk: int | None = None
    new_tokens: int = 8
    num_draft_tokens: int | None = 32
    drafter: str = "script"
    scripts: tuple[Script, ...] = ()
    references: tuple[tuple[int, ...], ...] = ()
    draw: int | None = None
    settings: tuple[tuple[str, Any], ...] = ()
    alphabet: tuple[int, ...] = ()
    moods: tuple[str, ...] = ()
    ends: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    criterion: tuple[str, int] | None = None
    door: str = "generate"
    engine: EngineName = "torch"


ALPHABETS = ((), (), (0, 97, 98), (0, 32, 97, 98, EOS), tuple(range(97, 110)))
TEXT = st.integers(0, EOS)  # without the pad token, which transformers takes for padding in a prompt


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """Draw a draft of any shape: chains, wide trees, duplicate siblings, token id 0, empty, or too large."""
    token = st.one_of(st.just(TRUTH), st.just(TRUTH), st.just(0), st.integers(0, VOCAB_SIZE - 1))
    above = st.one_of(st.just(1), st.integers(1, 6))
    row = st.tuples(above, token, st.sampled_from([1.0, 0.5, 0.1]))
    return tuple(draw(st.lists(row, max_size=draw(st.sampled_from([0, 4, 12, 30])))))


def settings(sampled: bool, ends: bool, room: int) -> st.SearchStrategy[tuple[tuple[str, Any], ...]]:
    """Return a strategy for up to four processors of transformers with random parameters."""
    token = st.integers(0, VOCAB_SIZE - 1)
    stock: dict[str, st.SearchStrategy[Any]] = {
        "repetition_penalty": st.sampled_from([0.8, 1.3, 2.0]),
        "encoder_repetition_penalty": st.sampled_from([0.8, 1.5]),
        "no_repeat_ngram_size": st.integers(1, 3),
        "encoder_no_repeat_ngram_size": st.integers(2, 3),
        "bad_words_ids": st.lists(st.lists(token, min_size=1, max_size=2), min_size=1, max_size=4),
        "suppress_tokens": st.lists(token, min_size=1, max_size=6),
        "begin_suppress_tokens": st.lists(token, min_size=1, max_size=6),
        "sequence_bias": st.lists(
            st.tuples(st.lists(token, min_size=1, max_size=2), st.sampled_from([-5.0, 3.0])).map(list), min_size=1
        ),
        "forced_eos_token_id": token,
        "renormalize_logits": st.just(True),
        "remove_invalid_values": st.just(True),
    }
    if ends:
        stock["min_new_tokens"] = st.integers(1, room)
        stock["exponential_decay_length_penalty"] = st.tuples(st.integers(0, 8), st.sampled_from([1.05, 1.5]))
    if sampled:
        stock |= {
            "temperature": st.sampled_from([0.3, 0.7, 1.0, 1.7]),
            "top_k": st.sampled_from([1, 2, 8, 50]),
            "top_p": st.sampled_from([0.3, 0.9, 1.0]),
            "min_p": st.sampled_from([0.02, 0.2]),
            "typical_p": st.sampled_from([0.4, 0.9]),
            "epsilon_cutoff": st.just(0.003),
            "eta_cutoff": st.just(0.003),
        }
    names = st.lists(st.sampled_from(sorted(stock)), max_size=4, unique=True)
    return names.flatmap(lambda chosen: st.tuples(*(st.tuples(st.just(name), stock[name]) for name in chosen)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw any request that both decoders support: prompt, model, drafts, processors, stops, and interface."""
    family = draw(st.sampled_from(sorted(FAMILIES_OF_CASES)))
    seed = draw(st.one_of(st.none(), st.integers(0, 2**31)))
    room = draw(st.integers(1, 20))
    ends = tuple(draw(st.lists(TEXT, max_size=draw(st.sampled_from([0, 2, 20])), unique=True)))
    letter = st.text("ab ", min_size=1, max_size=3) | st.characters(min_codepoint=32, max_codepoint=126)
    few = st.sampled_from([TEXT, st.sampled_from([0, 97, 98])]).flatmap(lambda tokens: st.lists(tokens, max_size=30))
    return Case(
        family=family,
        size=draw(st.integers(0, len(SIZES.get(family, ())))),
        seed=draw(st.integers(0, 1)),
        attention=draw(st.sampled_from(["sdpa", "eager"])),
        prompt=(*draw(few), draw(TEXT)),
        padding=draw(st.one_of(st.just(0), st.integers(0, 9))),
        chunk=None if family == "mamba2" else draw(st.one_of(st.none(), st.integers(1, 20))),  # it takes no chunks
        new_tokens=room,
        num_draft_tokens=draw(st.one_of(st.just(32), st.integers(0, 12), st.none())),
        drafter=draw(st.sampled_from(DRAFTERS_OF_CASES)),
        scripts=tuple(draw(st.lists(scripts(), min_size=1, max_size=4))),
        references=tuple(draw(st.lists(few.map(tuple), max_size=3))),
        draw=seed,
        settings=draw(settings(seed is not None, bool(ends), room)),
        alphabet=draw(st.sampled_from(ALPHABETS)),
        moods=tuple(draw(st.lists(st.sampled_from(["counting", "echo"]), max_size=2, unique=True))),
        ends=ends,
        stop_strings=tuple(draw(st.lists(letter, max_size=draw(st.sampled_from([0, 0, 4]))))),
        criterion=draw(st.none() | st.tuples(st.sampled_from(["calls", "sum", "zeros"]), st.integers(1, 12))),
        door=draw(st.sampled_from(["generate", "custom_generate", "stream"])),
        engine=draw(st.sampled_from(ENGINES)),
    )
