"""Every option of `generate`, with adversarial drafts, against `generate` itself; unsupported ones are refused."""

from collections.abc import Callable
from functools import cache, partial
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MaxTimeCriteria,
    StoppingCriteria,
    SynthIDTextWatermarkingConfig,
    TextIteratorStreamer,
    TextStreamer,
    WatermarkingConfig,
)

from antiphon.accel.decoding.stats import Step
from antiphon.accel.drafting.draft import EMPTY, Draft
from antiphon.accel.engines.torch.engine import traits_of
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.generate import Decoder, generate
from tests.accel.adversarial_drafters import RandomTreeDrafter, generate_with_trees
from tests.table_part import part
from tests.tiny import VOCAB_SIZE, byte_tokenizer, tiny_model

PROMPT = torch.randint(1, 250, (1, 40), generator=torch.Generator().manual_seed(3))
LENGTH = PROMPT.shape[1]
MODES: dict[str, dict[str, Any]] = {"greedy": {"do_sample": False}, "sampled": {"do_sample": True, "top_k": 40}}
DETAILED: dict[str, Any] = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}


@cache
def model() -> Any:
    return tiny_model(seed=11)


@cache
def text_of(mode: str = "greedy", length: int = 24) -> list[int]:
    """Return ``length`` new tokens of plain decoding, without end-of-sequence token."""
    torch.manual_seed(5)
    settings = {"max_new_tokens": length, "eos_token_id": None} | MODES[mode]
    tokens: list[int] = model().generate(PROMPT, **settings)[0, LENGTH:].tolist()
    return tokens


class Alternating(LogitsProcessor):
    """A stateful processor: every other call forbids the most likely tokens, and it records its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        best = scores.topk(self.calls % 2 * 3).indices
        return scores.scatter(1, best, -torch.inf)


def allowed(batch: int, ids: Tensor) -> list[int]:
    """Return the tokens of the other parity than the last token, so that the allowed tokens depend on the path."""
    return list(range(1 - int(ids[-1]) % 2, VOCAB_SIZE, 2))


def end_at(place: int) -> dict[str, Any]:
    """Return the token of plain greedy decoding at this position, as end-of-sequence token."""
    return {"eos_token_id": text_of()[place], "pad_token_id": 0}


# Each entry creates new options, because processors may keep state. All of them change the tokens or the scores.
PROCESSORS: dict[str, Callable[[], dict[str, Any]]] = {
    "guidance_scale": lambda: {"guidance_scale": 1.7},
    "guidance_scale, negative prompt": lambda: {"guidance_scale": 1.7, "negative_prompt_ids": PROMPT[:, :9]},
    "sequence_bias": lambda: {"sequence_bias": {(text_of()[3],): -8.0, tuple(text_of()[6:8]): -9.0, (9, 11): 9.0}},
    "encoder_repetition_penalty": lambda: {"encoder_repetition_penalty": 1.8},
    "repetition_penalty": lambda: {"repetition_penalty": 1.5},
    "no_repeat_ngram_size": lambda: {"no_repeat_ngram_size": 1},
    "encoder_no_repeat_ngram_size": lambda: {"encoder_no_repeat_ngram_size": 1},
    "bad_words_ids": lambda: {"bad_words_ids": [[text_of()[2]], text_of()[5:7], text_of("sampled")[4:6]]},
    "min_length": lambda: {"min_length": LENGTH + 12} | end_at(4),
    "min_new_tokens": lambda: {"min_new_tokens": 12} | end_at(4),
    "prefix_allowed_tokens_fn": lambda: {"prefix_allowed_tokens_fn": allowed},
    "forced_eos_token_id": lambda: {"forced_eos_token_id": [33]},
    "exponential_decay_length_penalty": lambda: {"exponential_decay_length_penalty": (3, 1.4)} | end_at(20),
    "suppress_tokens": lambda: {"suppress_tokens": text_of()[:9:2] + text_of("sampled")[:9:2]},
    "begin_suppress_tokens": lambda: {"begin_suppress_tokens": [text_of()[0], text_of("sampled")[0]]},
    "an own stateful processor": lambda: {"logits_processor": LogitsProcessorList([Alternating()])},
    "watermarking": lambda: {"watermarking_config": WatermarkingConfig(bias=4.0, seeding_scheme="selfhash")},
    "watermarking, lefthash": lambda: {"watermarking_config": WatermarkingConfig(bias=4.0)},
    "watermarking, SynthID": lambda: {
        "watermarking_config": SynthIDTextWatermarkingConfig(keys=[654, 400, 836, 123], ngram_len=3)
    },
    "renormalize_logits": lambda: {"renormalize_logits": True},
    "all at once": lambda: {
        "repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "suppress_tokens": text_of()[:3], "min_new_tokens": 9,
        "guidance_scale": 1.3, "watermarking_config": WatermarkingConfig(), "renormalize_logits": True,
        "logits_processor": LogitsProcessorList([Alternating()]), **end_at(4),
    },
}  # fmt: skip
WARPERS: dict[str, Callable[[], dict[str, Any]]] = {
    "temperature": lambda: {"temperature": 1.6},
    "top_k": lambda: {"top_k": 3},
    "top_p": lambda: {"top_p": 0.6},
    "min_p": lambda: {"min_p": 0.3},
    "top_h": lambda: {"top_h": 0.4},
    "typical_p": lambda: {"typical_p": 0.5},
    "epsilon_cutoff": lambda: {"epsilon_cutoff": 0.05},
    "eta_cutoff": lambda: {"eta_cutoff": 0.9},
    "temperature, top_k and top_p": lambda: {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
}
OPTIONS = PROCESSORS | WARPERS
ROWS = [(name, mode) for mode in MODES for name in (PROCESSORS if mode == "greedy" else OPTIONS)]
USUAL = [(name, mode) for name, mode in ROWS if mode == "greedy" or name in (*WARPERS, "all at once")]


def plain(mode: str, prompt: Tensor = PROMPT, **options: Any) -> Any:
    torch.manual_seed(5)
    return model().generate(prompt, **({"max_new_tokens": 24, "eos_token_id": None} | MODES[mode] | options))


def ours(mode: str, text: list[int], prompt: Tensor = PROMPT, **options: Any) -> Any:
    """Decode with partly correct drafts: greedy through `generate`, sampled through `custom_generate`."""
    settings = {"max_new_tokens": 24, "eos_token_id": None} | MODES[mode] | options
    torch.manual_seed(5)
    if mode == "greedy":
        return generate_with_trees(model(), prompt, text, 2, **settings)
    return model().generate(
        prompt,
        custom_generate=Decoder(drafter=lambda: RandomTreeDrafter(text, 2, VOCAB_SIZE), num_draft_tokens=32),
        **settings,
    )


@pytest.mark.parametrize(("name", "mode"), part(ROWS, USUAL))
def test_every_processor_gives_the_tokens_and_the_scores_of_generate(name: str, mode: str) -> None:
    expected = plain(mode, **DETAILED, **OPTIONS[name]())
    output = ours(mode, expected.sequences[0].tolist(), **DETAILED, **OPTIONS[name]())
    assert output.sequences.tolist() == expected.sequences.tolist()
    torch.testing.assert_close(output.scores, expected.scores, atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(output.logits, expected.logits, atol=2e-4, rtol=1e-4)
    without = plain(mode, **DETAILED)  # otherwise the option would have no effect in this test
    same = torch.equal(expected.sequences, without.sequences)
    assert not same or any(not torch.equal(*pair) for pair in zip(expected.scores, without.scores, strict=True))


OFFERED = {  # options that are supported; tests in this file, test_engine.py and test_caches.py use each of them
    "max_length", "max_new_tokens", "min_length", "min_new_tokens", "max_time", "stop_strings", "do_sample",
    "use_cache", "cache_implementation", "cache_config", "max_cache_len", "temperature", "top_k", "top_p", "min_p",
    "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff", "repetition_penalty", "encoder_repetition_penalty",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "renormalize_logits",
    "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens", "sequence_bias", "guidance_scale", "watermarking_config",
    "output_scores", "output_logits", "return_dict_in_generate", "pad_token_id", "bos_token_id", "eos_token_id",
    "prefill_chunk_size",
}  # fmt: skip
REFUSED = {  # see `REFUSED_OPTIONS`
    "num_beams", "num_beam_groups", "num_return_sequences", "output_attentions", "output_hidden_states",
    "token_healing", "penalty_alpha", "dola_layers", "constraints", "force_words_ids", "use_mtp", "speculation_type",
    "prompt_lookup_num_tokens", "assistant_early_exit",
}  # fmt: skip
WITHOUT_EFFECT = {  # options of refused features, of encoders, and of the compiler for GPUs; and metadata
    "early_stopping", "length_penalty", "diversity_penalty", "low_memory", "is_assistant", "num_assistant_tokens",
    "num_assistant_tokens_schedule", "assistant_confidence_threshold", "max_matching_ngram_size",
    "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight", "decoder_start_token_id",
    "compile_config", "disable_compile", "continuous_batching_config", "transformers_version", "_from_model_config",
}  # fmt: skip


def test_every_option_of_a_generation_config_is_supported_refused_or_without_effect() -> None:
    assert set(vars(GenerationConfig())) == OFFERED | REFUSED | WITHOUT_EFFECT
    assert len(OFFERED) + len(REFUSED) + len(WITHOUT_EFFECT) == len(OFFERED | REFUSED | WITHOUT_EFFECT)


class Listening(StoppingCriteria):
    """Ends a text at a length, and records the texts and the number of scores of its calls."""

    def __init__(self, length: int = 10**6) -> None:
        self.length = length
        self.asked: list[tuple[list[int], int | None]] = []

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Any:
        self.asked.append((input_ids[0].tolist(), None if scores is None else len(scores)))
        return torch.tensor([input_ids.shape[1] >= self.length])


@pytest.mark.parametrize("options", [{}, DETAILED], ids=["ids", "scores"])
@pytest.mark.parametrize("end", [None, 9])
@pytest.mark.parametrize("mode", MODES)
def test_custom_criteria_are_called_for_every_token_including_the_last(
    mode: str, end: int | None, options: dict[str, Any]
) -> None:
    options = options | ({} if end is None else {"eos_token_id": text_of(mode)[end], "pad_token_id": 0})
    theirs, mine = Listening(LENGTH + 14), Listening(LENGTH + 14)
    expected = plain(mode, stopping_criteria=[theirs], **options)
    output = ours(mode, LENGTH * [0] + text_of(mode), stopping_criteria=[mine], **options)
    if options.get("return_dict_in_generate"):
        expected, output = expected.sequences, output.sequences
    assert output.tolist() == expected.tolist()
    assert mine.asked == theirs.asked


def test_max_time_ends_generation_after_one_token() -> None:
    steps: list[Step] = []
    output: Any = generate(model(), PROMPT, max_new_tokens=24, max_time=1e-9, eos_token_id=None, on_step=steps.append)
    assert output[0].tolist() == PROMPT[0].tolist() + text_of()[:1]
    assert steps[-1].finish == "stop"
    late = [MaxTimeCriteria(max_time=1e-9)]
    assert ours("sampled", [], stopping_criteria=late)[0, LENGTH:].tolist() == text_of("sampled")[:1]


def stop_string(mode: str) -> str:
    """Return two consecutive printable characters from the middle of plain decoding's output."""
    tokens = text_of(mode, 40)
    place = next(i for i in range(3, 39) if all(32 < token < 127 for token in tokens[i : i + 2]))
    return str(byte_tokenizer().decode(tokens[place : place + 2]))


@pytest.mark.parametrize("where", ["argument", "generation_config", "model"])
@pytest.mark.parametrize("mode", MODES)
def test_stop_strings_end_the_text_wherever_they_are_set(
    mode: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops, tokenizer = [stop_string(mode), "never said"], byte_tokenizer()
    settings = {"max_new_tokens": 40, "eos_token_id": None} | MODES[mode]
    torch.manual_seed(5)
    expected = model().generate(PROMPT, stop_strings=stops, tokenizer=tokenizer, **settings)
    text = PROMPT[0].tolist() + text_of(mode, 40)
    assert expected.shape[1] < len(text)
    if where == "argument":
        options: dict[str, Any] = settings | {"stop_strings": stops}
    elif where == "generation_config":
        settings["eos_token_id"] = -1  # `generate` would replace None by the value in the model's configuration
        options = {"generation_config": GenerationConfig(**settings, stop_strings=stops, pad_token_id=0)}
    else:
        monkeypatch.setattr(model().generation_config, "stop_strings", stops)
        options = settings
    torch.manual_seed(5)
    output: Any = generate_with_trees(model(), PROMPT, text, 2, tokenizer=tokenizer, **options)
    assert output.tolist() == expected.tolist()


def streamed(streamer: Any, run: Callable[..., Any]) -> list[str]:
    """Return the pieces of a streamer that another thread fills."""
    thread = Thread(target=run, kwargs={"streamer": streamer})
    thread.start()
    pieces = list(streamer)
    thread.join()
    return pieces


def both_ways() -> list[Callable[..., Any]]:
    text = PROMPT[0].tolist() + text_of()
    return [partial(plain, "greedy"), partial(ours, "greedy", text)]


@pytest.mark.parametrize("skip_prompt", [False, True])
def test_text_streamers_get_the_same_pieces_as_without_drafts(
    skip_prompt: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, mine = both_ways()
    theirs(streamer=TextStreamer(byte_tokenizer(), skip_prompt))
    printed = capsys.readouterr().out
    mine(streamer=TextStreamer(byte_tokenizer(), skip_prompt))
    assert capsys.readouterr().out == printed != ""
    pieces = streamed(TextIteratorStreamer(byte_tokenizer(), skip_prompt, timeout=60), theirs)
    assert streamed(TextIteratorStreamer(byte_tokenizer(), skip_prompt, timeout=60), mine) == pieces
    assert "".join(pieces) == printed.removesuffix("\n")


REFUSED_OPTIONS: dict[str, dict[str, Any]] = {
    "num_beams=2": {"num_beams": 2},
    "use_cache=False": {"use_cache": False},
    "output_attentions": {"output_attentions": True, "return_dict_in_generate": True},
    "output_hidden_states": {"output_hidden_states": True, "return_dict_in_generate": True},
    "a StaticCache for 3 sequences": {"num_return_sequences": 3, "do_sample": True, "cache_implementation": "static"},
    "num_beam_groups=2": {"num_beam_groups": 2},
    "penalty_alpha=0.6 without sampling .contrastive search.": {"penalty_alpha": 0.6, "top_k": 4},
    "constraints": {"constraints": [1]},
    "force_words_ids": {"force_words_ids": [[1]]},
    "dola_layers": {"dola_layers": "low"},
    "position_ids of your own": {"position_ids": torch.arange(7, 47)[None]},
    "prompt_lookup_num_tokens; its drafts come from drafter= and references=": {"prompt_lookup_num_tokens": 5},
    "assistant_early_exit; its drafts": {"assistant_early_exit": 1},
    "use_mtp; its drafts": {"use_mtp": True},
    "speculation_type; its drafts": {"speculation_type": "dflash"},
    "output_router_logits": {"output_router_logits": True},
}


@pytest.mark.parametrize("name", REFUSED_OPTIONS)
def test_unsupported_options_are_refused_by_name(name: str) -> None:
    model = tiny_model(attn_implementation="eager")
    with pytest.raises(ValueError, match=name):
        generate(model, PROMPT, max_new_tokens=4, **REFUSED_OPTIONS[name])
    with pytest.raises(ValueError, match=name):
        model.generate(PROMPT, custom_generate=Decoder(), max_new_tokens=4, **REFUSED_OPTIONS[name])  # type: ignore[operator]


# Options that transformers handles or rejects before it calls a custom decoder: `prepare` has to refuse them.
UNHEARD: dict[str, dict[str, Any]] = {
    "assistant_model; its drafts come from drafter= and references=": {"assistant_model": tiny_model()},
    "assistant_tokenizer": {"assistant_tokenizer": byte_tokenizer()},
    "synced_gpus": {"synced_gpus": True},
    "custom_generate": {"custom_generate": "somebody/decoder"},
    "token_healing": {"token_healing": True, "tokenizer": byte_tokenizer()},
    "cache_implementation='paged'": {"cache_implementation": "paged"},
}


@pytest.mark.parametrize("name", UNHEARD)
def test_options_that_generate_does_not_pass_on_are_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"does not offer {name}"):
        generate(tiny_model(), PROMPT, max_new_tokens=4, **UNHEARD[name])


@pytest.mark.parametrize("padding", [0, 5])
def test_default_positions_are_accepted(padding: int) -> None:
    model = tiny_model(seed=11)
    mask = torch.ones_like(PROMPT)
    mask[:, :padding] = 0
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)
    expected = model.generate(PROMPT, position_ids=positions, **options)  # type: ignore[operator]
    output = generate(model, PROMPT, position_ids=positions, **options)
    assert output.tolist() == expected.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("references", "error", "message"),
    [
        ("one text", TypeError, "pass a list of texts"),
        (["a text"], ValueError, "pass tokenizer="),
        ([3.5], TypeError, "Reference 0 is a float"),
        ([[1, 2], None], TypeError, "Reference 1 is a NoneType"),
        ([[1, 2, 999]], ValueError, "Reference 0 has token id 999"),
    ],
)
def test_an_invalid_reference_is_named(references: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        generate(tiny_model(seed=11), PROMPT, references=references, max_new_tokens=2)


def test_a_cache_that_holds_the_whole_prompt_is_refused() -> None:
    model = tiny_model(seed=11)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(PROMPT, past_key_values=cache)
    with pytest.raises(ValueError, match="already holds 40 tokens"):
        generate(model, PROMPT, past_key_values=cache, max_new_tokens=4)


def test_a_model_in_training_mode_is_decoded_plainly_and_says_why() -> None:
    model = tiny_model(seed=11)
    assert traits_of(model).level == "tree"
    model.train()
    assert traits_of(model).level == "plain"
    assert "model.eval()" in traits_of(model).reason
    assert TorchSequence(model, traits_of(model)).fit(Draft((1,), (-1,), (1.0,)), 8, 8) == EMPTY
