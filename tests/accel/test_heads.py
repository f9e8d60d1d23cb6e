"""Draft heads: texts equal plain decoding, chains equal those of transformers, hidden states are those of kept rows."""

import json
import re
from functools import cache, partial
from itertools import product
from math import nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import Module
from transformers import DynamicCache, GenerationConfig
from transformers.generation.candidate_generator import (
    DFlashTokenCandidateGenerator,
    MTPCandidateGenerator,
    SinglePositionMultiTokenCandidateGenerator,
)

from antiphon.accel.decoding.prefix_cache import PrefixCache
from antiphon.accel.drafting.drafters import Blend
from antiphon.accel.drafting.drafters.head import HiddenStates
from antiphon.accel.engines.openvino.runtime import is_installed
from antiphon.accel.engines.protocol import MAX_TOKENS, KeptStates
from antiphon.accel.engines.selection import EngineName
from antiphon.accel.engines.torch import assistants, heads
from antiphon.accel.engines.torch.assistants import guesses_of
from antiphon.accel.engines.torch.compiled_sequence import CompiledSequence
from antiphon.accel.engines.torch.engine import TorchEngine, engine_of
from antiphon.accel.engines.torch.heads import load_head
from antiphon.accel.generate import generate
from antiphon.accel.language_model import LanguageModel
from antiphon.accel.memory_estimate import estimate_memory
from antiphon.accel.model_report import describe_head
from tests.accel.adversarial_drafters import RecordingDrafter
from tests.accel.adversarial_heads import AdversarialHead, Eager
from tests.accel.head_checkpoints import (
    GEMMA,
    QWEN,
    add_mtp_layers,
    eagle3_reference,
    model_with_head,
    save_dflash,
    save_eagle3,
    save_gemma4_assistant,
    save_mtp_checkpoint,
)
from tests.accel.multimodal_checkpoints import save_multimodal
from tests.accel.oracles import expect_close, expect_plain_logits
from tests.accel.test_contract import prompt_of
from tests.table_part import part
from tests.tiny import VOCAB_SIZE, byte_tokenizer, save_model, tiny_model

pytestmark = pytest.mark.slow
KINDS = ("qwen3_5", "glm4_moe", "exaone_moe", "eagle3", "gemma4", "dflash")
USUAL = [*((kind, 1.0) for kind in KINDS if kind != "glm4_moe"), ("eagle3", nan), ("gemma4", nan)]
"""The kinds of heads, with right and with undefined guesses, of which `make test` runs one; glm4_moe has 46 layers."""


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that loads a language model with a head of one kind, once."""
    return cache(lambda kind: model_with_head(kind, tmp_path_factory.mktemp(kind)))


def hidden_states(model: Any, tokens: list[int], layers: tuple[int, ...] = (-1,)) -> list[Tensor]:
    """Return the hidden states of a plain forward pass, (tokens, hidden) for each of the layers."""
    with torch.no_grad():
        found = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    return [found[layer][0] for layer in layers]


@pytest.mark.parametrize(("kind", "factor"), part(product(KINDS, (1.0, nan)), USUAL))
def test_no_head_changes_a_text(kind: str, factor: float, load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    language_model = load(kind)
    model = language_model.model
    head: Any = engine_of(model).head
    monkeypatch.setattr(head, "stats", Eager())
    for module in (heads, assistants):
        monkeypatch.setattr(module, "guesses_of", lambda logits, *more: guesses_of(factor * logits, *more))
    # 1. Greedy: tokens equal those of transformers, and logits of kept rows those of plain forward passes.
    expected = model.generate(prompt_of(3), max_new_tokens=24, do_sample=False, eos_token_id=None)[0].tolist()
    recorder = RecordingDrafter(Blend(head=head))
    options: Any = {"num_draft_tokens": 16, "max_new_tokens": 24, "do_sample": False, "eos_token_id": None}
    output: Any = generate(model, prompt_of(3), drafter=lambda: recorder, **options)
    assert output[0].tolist() == expected
    expect_plain_logits(model, expected, recorder.records)
    assert sum(head.stats._depths.trials) > 0  # the head has guessed
    # 2. Greedy and sampled: two requests at once, and the continuation of a cached text.
    for settings in ({}, {"temperature": 0.8, "seed": 5, "presence_penalty": 0.5}):
        more: Any = {"max_new_tokens": 12} | settings
        prompts = ["A prompt", "Another prompt that is longer"]
        plain = [language_model.generate(prompt, num_draft_tokens=0, **more).text for prompt in prompts]
        drafted = language_model.generate_batch(prompts, num_draft_tokens=16, **more)
        assert [each.text for each in drafted] == plain
        prefix, longer = PrefixCache(), f"{prompts[0]}{plain[0]} and more"
        for prompt in (prompts[0], longer):
            text = language_model.generate(prompt, prefix=prefix, num_draft_tokens=16, **more).text
            assert text == language_model.generate(prompt, num_draft_tokens=0, **more).text


@pytest.mark.parametrize("more", [{"stop": ["e"]}, {"json_schema": {"type": "string"}}, {"response_prefix": "It is"}])
def test_a_head_changes_no_sampled_text(more: dict[str, Any], load: Any) -> None:
    language_model = load("eagle3")
    sampled = {"temperature": 0.8, "seed": 5, "max_new_tokens": 24, "presence_penalty": 0.5} | more
    plain = language_model.generate("A prompt", num_draft_tokens=0, **sampled)
    assert language_model.generate("A prompt", num_draft_tokens=8, **sampled).text == plain.text


def candidate_generator(kind: str, model: Any, head: Any) -> Any:
    """Return what transformers drafts with, for the same head."""
    config = GenerationConfig(do_sample=False, max_length=1000)
    if kind == "gemma4":
        head.assistant.generation_config.num_assistant_tokens = 5
        return SinglePositionMultiTokenCandidateGenerator(head.assistant, model.get_input_embeddings(), config)
    if kind == "dflash":
        ends = model.get_input_embeddings(), model.get_output_embeddings()
        return DFlashTokenCandidateGenerator(head.module, *ends, config)
    return MTPCandidateGenerator(model, config, {})


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "eagle3"])
def test_the_chain_of_a_head_equals_that_of_transformers(kind: str, load: Any) -> None:
    model = load(kind).model
    head: Any = engine_of(model).head
    generator, arguments = candidate_generator(kind, model, head), {"return_shared_kv_states": kind == "gemma4"}
    context, end = [*prompt_of(3)[0].tolist(), 40], 0
    outputs: Any = None
    session = head.session(lambda: outputs.past_key_values)
    for matches in (0, 2, 0, 1, 4, 3, 0, 9, 0):
        outputs = plain_outputs(model, context[:-1], **arguments)
        kept = slice(end, len(context) - 1)
        given = SimpleNamespace(
            hidden_states=[states[:, kept] for states in outputs.hidden_states],
            shared_kv_states=visible_keys(model, outputs) if kind == "gemma4" else None,
        )
        [[*candidates]], scores = generator.get_candidates(
            torch.LongTensor([context]),
            {"position_ids": torch.arange(len(context))[None], "attention_mask": None},
            given,
            is_first_iteration=False,
            n_last_matches=kept.stop - kept.start - 1,
        )
        expected = [int(token) for token in candidates[len(context) :]]
        states = tuple(outputs.hidden_states[layer][0, kept] for layer in head.layers)
        found = [session.read([HiddenStates(end, states)], context[end + 1 :], 3)]
        while len(found) < min(len(expected) + 2, head.max_depth):
            found.append(session.guess(found[-1][0][0], 3))
        assert [guesses[0][0] for guesses in found][: len(expected)] == expected
        best = scores[0].topk(3).indices.tolist()
        assert [[token for token, _ in guesses] for guesses in found][: len(expected)] == best
        context, end = [*context, *expected[:matches], 70 + end % 7], kept.stop


def plain_outputs(model: Any, tokens: list[int], **arguments: Any) -> Any:
    """Return hidden states and the cache of a plain forward pass."""
    with torch.no_grad():
        more: Any = {"past_key_values": DynamicCache(config=model.config), "output_hidden_states": True}
        return model(torch.tensor([tokens]), use_cache=True, **more, **arguments)


def visible_keys(model: Any, outputs: Any) -> dict[str, tuple[Tensor, ...]]:
    """Return the keys and values that the next token attends to, by kind of layer."""
    window = model.config.sliding_window - 1  # without the token itself
    first = {"full_attention": 0, "sliding_attention": -window}
    return {
        kind: tuple(each[..., first[kind] :, :] for each in states) for kind, states in outputs.shared_kv_states.items()
    }


def test_the_chain_of_an_eagle3_head_equals_its_formulas(tmp_path: Path) -> None:
    model: Any = tiny_model()
    path = save_eagle3(model, tmp_path)
    head: Any = load_head(model, path)[0]
    text = prompt_of(3)[0].tolist()
    states = hidden_states(model, text[:-1], head.layers)
    expected = eagle3_reference(path, torch.cat(states, -1), model.get_input_embeddings().weight, text[1:], 4)
    session = head.session(lambda: None)
    for start, end in ((0, 20), (20, 21), (21, len(text) - 1)):
        part = HiddenStates(start, tuple(each[start:end] for each in states))
        [(token, _)] = session.read([part], text[start + 1 : end + 1], 1)
        chain = [token]
        while len(chain) < 4:
            chain += [token for token, _ in session.guess(chain[-1], 1)]
    assert chain == expected


@pytest.mark.parametrize("engine", ["torch", "compiled", "openvino"])
@pytest.mark.parametrize("kind", ["random", "nan"])
def test_a_head_reads_the_hidden_states_of_kept_rows(engine: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if engine == "openvino" and not is_installed():
        pytest.skip("OpenVINO is not installed: pip install openvino")
    model: Any = tiny_model()
    head = AdversarialHead(kind)
    engine_of(model).head = head
    if engine == "compiled":  # the steps of CUDA graphs, without capturing them
        make = partial(CompiledSequence, steps=engine_of(model).compiled_steps, compiles=False)
        monkeypatch.setattr(TorchEngine, "_compiled_or_plain", lambda self, plain, compiled: make(plain))
    name: EngineName = "openvino" if engine == "openvino" else "torch"
    options: Any = {"num_draft_tokens": 16, "max_new_tokens": 40, "do_sample": False, "eos_token_id": None}
    output: Any = generate(model, prompt_of(3), drafter="blend", engine=name, prefill_chunk_size=16, **options)
    text = output[0].tolist()
    assert text == model.generate(prompt_of(3), max_new_tokens=40, do_sample=False, eos_token_id=None)[0].tolist()
    assert (head.last.start, len(head.last.states)) == (0, head.last.end)
    assert head.last.end > 70
    [truth] = hidden_states(model, text)
    expect_close(torch.tensor(head.last.states), truth[: head.last.end])


@pytest.mark.parametrize("engine", ["torch", "openvino"])
def test_requests_with_heads_share_forward_passes_and_prefixes(engine: EngineName) -> None:
    if engine == "openvino" and not is_installed():
        pytest.skip("OpenVINO is not installed: pip install openvino")
    model: Any = tiny_model(seed=4)
    head = AdversarialHead()
    engine_of(model).head = head
    language_model = LanguageModel(model, byte_tokenizer(), engine=engine, memory=2**20)
    start = "The same beginning of all of these prompts, which takes more than one block of the cache."
    prompts = [f"{start} {ending}" for ending in ("One", "Two and more", "Three", "Four")]
    plain = [language_model.generate(prompt, num_draft_tokens=0, max_new_tokens=30).text for prompt in prompts]
    for _ in range(2):
        found = language_model.generate_batch(prompts, num_draft_tokens=8, max_new_tokens=30)
        assert [each.text for each in found] == plain
    assert head.last.states
    assert (head.last.start > 0) == (engine == "openvino")  # the states of a cached prefix are unknown


@pytest.mark.parametrize(
    ("save", "changes", "message"),
    [
        (save_eagle3, {"hidden_size": 48}, "hidden states of 48 values .* the model has 64 values .* another model"),
        (save_eagle3, {"vocab_size": 99}, "a vocabulary of 99 tokens"),
        (save_eagle3, {"num_hidden_layers": 2}, "Only EAGLE-3 heads of one layer"),
        (save_gemma4_assistant, {}, r"keys of the shapes .*16.* and {}: it was trained for another model"),
        (save_gemma4_assistant, {"backbone_hidden_size": 48}, "hidden states of 48 values"),
        (save_dflash, {"hidden_size": 48}, "hidden states of 48 values .* another model"),
        (save_dflash, {"target_layer_ids": [0, 2]}, r"layers \[0, 2\]"),
        (partial(save_dflash, is_authors=True), {"fc_layernorm": True}, "settings fc_layernorm are not supported"),
    ],
)
def test_a_head_of_another_model_is_refused(save: Any, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = tiny_model()
    path = save(model, tmp_path, **changes)
    with pytest.raises(ValueError, match=f"head is .*{message}"):
        LanguageModel(model, byte_tokenizer(), head=path)
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="which is of the type 'llama'"):
        load_head(model, tmp_path / "model")


def test_dflash_models_of_its_authors_are_those_of_transformers(tmp_path: Path) -> None:
    model = tiny_model()
    found: list[Any] = [
        load_head(model, save_dflash(model, tmp_path / str(own), is_authors=own))[0] for own in (False, True)
    ]
    states = HiddenStates(0, tuple(hidden_states(model, [1, 2, 3], found[0].layers)))
    chains = [head.session(lambda: None).read([states], [2, 3, 4], 3) for head in found]
    assert chains[0] == chains[1]
    assert found[0].layers == found[1].layers == (1, 2)
    weights = [head.module.state_dict() for head in found]
    assert all(torch.equal(each, weights[1][name]) for name, each in weights[0].items())


def test_a_checkpoint_without_an_mtp_layer_has_no_head(tmp_path: Path) -> None:
    save_model(tiny_model(QWEN), tmp_path)
    model = LanguageModel.from_pretrained(tmp_path, engine="torch").model
    assert engine_of(model).head is None
    assert "could not be loaded" in engine_of(model).head_reason
    assert load_head(tiny_model(), "auto") == (None, "it has no MTP layer")


def test_embeddings_and_lm_head_are_in_memory_once(tmp_path: Path) -> None:
    model: Any = tiny_model()
    path = save_eagle3(model, tmp_path, draft_vocab=VOCAB_SIZE)
    weights = load_file(path / "model.safetensors")
    shared = {"embed_tokens.weight": model.model.embed_tokens.weight, "lm_head.weight": model.lm_head.weight}
    save_file(weights | {name: each.detach().clone() for name, each in shared.items()}, path / "model.safetensors")
    head: Any = load_head(model, path)[0]
    assert [each.data_ptr() for each in (head.module._embeddings, head.module.weight)] == [
        each.data_ptr() for each in shared.values()
    ]
    assert head.num_bytes == sum(
        each.nbytes for name, each in weights.items() if name.startswith(("fc", "layers", "n"))
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_holds_no_copy_of_the_weights_of_its_model(kind: str, load: Any) -> None:
    model = load(kind).model
    head: Any = engine_of(model).head
    shared = {each.untyped_storage().data_ptr() for each in model.state_dict().values()}
    parts = [each for owner in (head, getattr(head, "module", head)) for each in vars(owner).values()]
    held = [each for part in parts for each in (part.parameters() if isinstance(part, Module) else [part])]
    storages = [each.untyped_storage() for each in held if isinstance(each, Tensor)]
    own = {each.data_ptr(): each.nbytes() for each in storages if each.data_ptr() not in shared}
    assert abs(sum(own.values()) - head.num_bytes) < 1000  # an EAGLE-3 head's table of tokens is not a weight


@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_of_a_head_is_estimated(kind: str, load: Any, tmp_path: Path) -> None:
    language_model = load(kind)
    head: Any = engine_of(language_model.model).head
    source: Any = "auto"
    folder = Path(language_model.model.config.name_or_path or tmp_path)
    if folder == tmp_path:
        save = {"eagle3": save_eagle3, "gemma4": save_gemma4_assistant, "dflash": save_dflash}[kind]
        language_model.model.save_pretrained(folder)
        source = save(language_model.model, tmp_path / "head")
    options: Any = {"engine": "torch", "precision": "float32"}
    estimates: list[Any] = [estimate_memory(folder, head=each, **options) for each in (None, source)]
    plain, found = estimates
    assert (plain.head, found.head) == (0, head.num_bytes)
    assert found.total - plain.total == head.num_bytes
    assert found.weights == sum(each.nbytes for each in language_model.model.state_dict().values())
    assert "draft head" in str(found)


def test_only_the_newest_states_are_held() -> None:
    kept = KeptStates((-1,))
    for start in range(0, 6000, 2000):
        kept.note([torch.zeros(2000, 1)])
        kept.keep(start, range(2000))
    kept.note([torch.arange(5000.0)[:, None]])
    kept.keep(6000, range(5000))
    [part] = kept.take()
    assert (part.start, len(part.layers[0]), float(part.layers[0][0])) == (11000 - MAX_TOKENS, MAX_TOKENS, 904.0)


@pytest.mark.parametrize(
    ("family", "save", "message"),
    [
        ("llama", save_eagle3, r"EAGLE-3 head .* is not used: .* openvino .* the hidden states \(0, 1, 2\)"),
        (GEMMA, save_gemma4_assistant, r"Gemma 4 assistant .* is not used: .* openvino .* the model's keys and values"),
    ],
)
def test_a_head_that_the_engine_cannot_feed_is_said(family: Any, save: Any, message: str, tmp_path: Path) -> None:
    if not is_installed():
        pytest.skip("OpenVINO is not installed: pip install openvino")
    model = tiny_model(family)
    with pytest.warns(UserWarning, match=message):
        loaded = LanguageModel(model, byte_tokenizer(), head=save(model, tmp_path), engine="openvino", memory=2**20)
    text = loaded.generate("A prompt", max_new_tokens=8, num_draft_tokens=8).text
    assert text == loaded.generate("A prompt", max_new_tokens=8, num_draft_tokens=0).text
    head: Any = engine_of(model).head
    assert head.stats.pass_seconds == 0.0  # it has not run


def test_an_mtp_layer_guesses_with_the_lm_head_of_openvino(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_installed():
        pytest.skip("OpenVINO is not installed: pip install openvino")
    monkeypatch.setattr("antiphon.accel.engines.openvino.lm_head.MIN_BYTES", 0)
    options: Any = {"engine": "openvino", "memory": 2**20, "recycling": False}
    loaded = LanguageModel.from_pretrained(save_mtp_checkpoint("qwen3_5", tmp_path), **options)
    head: Any = engine_of(loaded.model).head
    head.stats, used, find = Eager(), list[Tensor](), head.module.find_guesses

    def find_and_note(output: Tensor, width: int) -> Any:
        used.append(output)
        return find(output, width)

    monkeypatch.setattr(head.module, "find_guesses", find_and_note)
    text = loaded.generate("A prompt", max_new_tokens=24, num_draft_tokens=8).text
    assert text == loaded.generate("A prompt", max_new_tokens=24, num_draft_tokens=0).text
    for output in used:
        expected = guesses_of(output @ head.module.weight.T, 4)[0]
        assert dict(find(output, 4)).get(expected[0][0], 0.0) == pytest.approx(expected[0][1], rel=0.2)
    assert len(used) > 20


def test_the_mtp_layer_of_a_multimodal_checkpoint_is_found(tmp_path: Path) -> None:
    save_multimodal("qwen3_5", tmp_path)
    add_mtp_layers(LanguageModel.from_pretrained(tmp_path, engine="torch").model, "qwen3_5", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")  # here with the names that text models have alone
    weights = {name.replace("model.language_model.", "model."): weight for name, weight in weights.items()}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"]["mtp_num_hidden_layers"] = 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    head: Any = engine_of(LanguageModel.from_pretrained(tmp_path, engine="torch").model).head
    found = head.module.module.layers[0]
    for name, weight in (("layers.0.mlp.up_proj", found.mtp_block.mlp.up_proj), ("fc", found.eh_proj)):
        assert torch.equal(weight.weight, weights[f"mtp.{name}.weight"])


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("exaone_moe", r"head of 3 MTP layers, 0\.\d MB of its own weights, \d+\.\d ms a guess"),
        ("gemma4", r"Gemma 4 assistant, 0\.\d MB of its own weights, \d+\.\d ms a guess"),
        ("dflash", r"DFlash model, 0\.\d MB of its own weights, \d+\.\d ms for 5 guesses"),
    ],
)
def test_a_head_is_described(kind: str, said: str, load: Any) -> None:
    assert re.fullmatch(said, describe_head(engine_of(load(kind).model)))
