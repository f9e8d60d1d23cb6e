"""Draft heads: texts equal plain decoding, chains equal those of transformers, hidden states are those of kept rows."""

from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu
from transformers import GenerationConfig
from transformers.generation.candidate_generator import MTPCandidateGenerator

from antiphon.accel.drafting.draft import EMPTY, Accepted
from antiphon.accel.drafting.drafters import Blend
from antiphon.accel.drafting.drafters.head import EXPLORE_EVERY, MAX_DEPTH, Head, HeadStats, HiddenStates
from antiphon.accel.engines.hidden_states import MAX_TOKENS, KeptStates
from antiphon.accel.engines.openvino.runtime import is_installed
from antiphon.accel.engines.selection import EngineName
from antiphon.accel.engines.torch.compiled_sequence import CompiledSequence
from antiphon.accel.engines.torch.engine import TorchEngine, engine_of
from antiphon.accel.engines.torch.heads import TorchHead, load_head
from antiphon.accel.generate import generate
from antiphon.accel.language_model import LanguageModel
from tests.accel.adversarial_drafters import RecordingDrafter
from tests.accel.adversarial_heads import AdversarialHead
from tests.accel.head_checkpoints import save_eagle3, save_mtp_checkpoint
from tests.accel.oracles import expect_close, expect_plain_logits
from tests.accel.test_contract import prompt_of
from tests.tiny import VOCAB_SIZE, byte_tokenizer, tiny_model

pytestmark = pytest.mark.slow
KINDS = ("qwen3_5", "glm4_moe", "eagle3")


@pytest.fixture(scope="module")
def model_with_head(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that loads a language model with a head of one kind, once."""

    @cache
    def load(kind: str) -> LanguageModel:
        folder = tmp_path_factory.mktemp(kind)
        if kind != "eagle3":
            return LanguageModel.from_pretrained(save_mtp_checkpoint(kind, folder), engine="torch", recycling=False)
        model = tiny_model()
        return LanguageModel(model, byte_tokenizer(), head=save_eagle3(model, folder), recycling=False)

    return load


def hidden_states(model: Any, tokens: list[int], layers: tuple[int, ...] = (-1,)) -> list[Tensor]:
    """Return the hidden states of a plain forward pass, (tokens, hidden) for each of the layers."""
    with torch.no_grad():
        found = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    return [found[layer][0] for layer in layers]


@pytest.mark.parametrize("kind", KINDS)
def test_texts_with_a_head_equal_plain_decoding(kind: str, model_with_head: Any) -> None:
    model = model_with_head(kind).model
    head: Any = engine_of(model).head
    expected = model.generate(prompt_of(3), max_new_tokens=32, do_sample=False, eos_token_id=None)[0].tolist()
    head.stats.pays = lambda gain: True
    recorder = RecordingDrafter(Blend(head=head))
    options: Any = {"num_draft_tokens": 16, "max_new_tokens": 32, "do_sample": False, "eos_token_id": None}
    output: Any = generate(model, prompt_of(3), drafter=lambda: recorder, **options)
    assert output[0].tolist() == expected
    expect_plain_logits(model, expected, recorder.records)
    assert sum(head.stats._depths.trials) > 0  # the head has guessed


@pytest.mark.parametrize("more", [{"stop": ["e"]}, {"json_schema": {"type": "string"}}, {"response_prefix": "It is"}])
def test_a_head_changes_no_sampled_text(more: dict[str, Any], model_with_head: Any) -> None:
    language_model = model_with_head("eagle3")
    sampled = {"temperature": 0.8, "seed": 5, "max_new_tokens": 24, "presence_penalty": 0.5} | more
    plain = language_model.generate("A prompt", num_draft_tokens=0, **sampled)
    assert language_model.generate("A prompt", num_draft_tokens=8, **sampled).text == plain.text


@pytest.mark.parametrize("kind", ["qwen3_5", "glm4_moe"])
def test_the_chain_of_an_mtp_layer_equals_that_of_transformers(kind: str, model_with_head: Any) -> None:
    model = model_with_head(kind).model
    head: Any = engine_of(model).head
    text = [*prompt_of(3)[0].tolist(), *range(40, 70)]
    [states] = hidden_states(model, text)
    generator = MTPCandidateGenerator(model, GenerationConfig(do_sample=False), {})
    session, end = head.session(), 0
    for kept in (40, 1, 3, 1, 2, 5, 1):  # the prompt, and accepted tokens of some steps
        context = text[: end + kept + 1]
        outputs: Any = type("Outputs", (), {"hidden_states": (states[None, end : end + kept],)})
        [[*_, expected]], scores = generator.get_candidates(
            torch.LongTensor([context]),
            {"position_ids": torch.arange(len(context))[None]},
            outputs,
            is_first_iteration=False,
            n_last_matches=kept - 1,
        )
        assert scores is not None
        found = session.read([HiddenStates(end, (states[end : end + kept],))], context[end + 1 :], 3)
        assert found[0][0] == int(expected)
        assert [token for token, _ in found] == scores[0, -1].topk(3).indices.tolist()
        for _ in range(2):  # guesses leave nothing behind
            found = session.guess(found[0][0], 3)
        end += kept


def eagle3_reference(path: Path, read: Tensor, embeddings: Tensor, tokens: list[int], steps: int) -> list[int]:
    """Return the chain of an EAGLE-3 head, computed without a cache from the formulas of vLLM's implementation."""
    from safetensors.torch import load_file

    weights = load_file(path / "model.safetensors")
    layer = {name.removeprefix("layers.0."): weight for name, weight in weights.items()}

    def rotated(heads: Tensor) -> Tensor:
        angles = torch.arange(heads.shape[1])[:, None] * 10000.0 ** (-torch.arange(0, 16, 2) / 16)
        first, second = heads.chunk(2, dim=-1)
        cosine, sine = angles.cos(), angles.sin()
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)

    def norm(hidden: Tensor, name: str) -> Tensor:
        return rms_norm(hidden, hidden.shape[-1:], layer[f"{name}.weight"], 1e-6)

    hidden, tokens, chain = linear(read, weights["fc.weight"]), list(tokens), list[int]()
    for _ in range(steps):
        joined = torch.cat([norm(embeddings[tokens], "input_layernorm"), norm(hidden, "hidden_norm")], -1)
        names = [f"self_attn.{name}_proj.weight" for name in "qkv"]
        queries, keys, values = (
            linear(joined, layer[name]).view(len(tokens), -1, 16).transpose(0, 1) for name in names
        )
        states = rotated(queries)[None], rotated(keys)[None], values[None]
        attended = scaled_dot_product_attention(*states, is_causal=True, enable_gqa=True)
        output = hidden + linear(attended[0].transpose(0, 1).flatten(1), layer["self_attn.o_proj.weight"])
        inner = norm(output, "post_attention_layernorm")
        gated = silu(linear(inner, layer["mlp.gate_proj.weight"])) * linear(inner, layer["mlp.up_proj.weight"])
        output = output + linear(gated, layer["mlp.down_proj.weight"])
        best = int(linear(norm(output[-1], "norm"), weights["lm_head.weight"]).argmax())
        chain.append(best + int(weights["d2t"][best]))
        tokens.append(chain[-1])
        hidden = torch.cat([hidden, output[-1:]])
    return chain


def test_the_chain_of_an_eagle3_head_equals_its_formulas(tmp_path: Path) -> None:
    model: Any = tiny_model()
    path = save_eagle3(model, tmp_path)
    head, _ = load_head(model, path)
    assert head is not None
    text = prompt_of(3)[0].tolist()
    states = hidden_states(model, text[:-1], head.layers)
    expected = eagle3_reference(path, torch.cat(states, -1), model.get_input_embeddings().weight, text[1:], 4)
    session = head.session()
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
    ("changes", "message"),
    [
        ({"hidden_size": 48}, "hidden states of 48 values .* the model has 64 values .* trained for another model"),
        ({"vocab_size": 99}, "a vocabulary of 99 tokens"),
        ({"num_hidden_layers": 2}, "Only EAGLE-3 heads of one layer"),
    ],
)
def test_a_head_of_another_model_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = tiny_model()
    path = save_eagle3(model, tmp_path, **changes)
    with pytest.raises(ValueError, match=f"head is .*{message}"):
        LanguageModel(model, byte_tokenizer(), head=path)
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="speculators_model_type is None"):
        load_head(model, tmp_path / "model")


def test_a_checkpoint_without_an_mtp_layer_has_no_head(tmp_path: Path) -> None:
    from tests.accel.head_checkpoints import QWEN

    tiny_model(QWEN).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    model = LanguageModel.from_pretrained(tmp_path, engine="torch").model
    assert engine_of(model).head is None
    assert "could not be loaded" in engine_of(model).head_reason
    assert load_head(tiny_model(), "auto") == (None, "it has no MTP layer")


def test_embeddings_are_in_memory_once(tmp_path: Path) -> None:
    model: Any = tiny_model()
    head, _ = load_head(model, save_eagle3(model, tmp_path))
    assert isinstance(head, TorchHead)
    shared: Any = head.module
    assert shared._embeddings.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    assert not any(weight.shape[0] == VOCAB_SIZE for weight in shared._body.parameters())


class TimedStats(HeadStats):
    """A pass takes half of the time of a step that emits two tokens: it has to bring more than one token."""

    def __init__(self) -> None:
        super().__init__(is_timed=False)
        self.pass_seconds, self.step_seconds, self.step_tokens = 0.5, 1.0, 2.0


@pytest.mark.parametrize(
    ("kind", "stats", "most"),
    [("random", TimedStats(), 1), ("wrong", HeadStats(is_timed=False), 500), ("never", HeadStats(is_timed=False), 200)],
)
def test_a_head_that_costs_more_than_it_brings_rests(kind: str, stats: HeadStats, most: int) -> None:
    model = AdversarialHead(kind)
    model.stats = stats  # type: ignore[assignment]
    head = Head(model)
    head.begin((1, 2, 3), ())
    known = 0
    for step in range(600 if most > 1 else EXPLORE_EVERY + 8):
        start, known = known, len(head.text) - 1
        head.connect(lambda: [HiddenStates(start, (torch.zeros(known - start, 2),))], lambda function: function())  # noqa: B023
        assert len(head.propose(tuple(head.text), 16)) <= 4 * MAX_DEPTH
        head.observe(EMPTY, Accepted((), (5 + step % 2,)), None)
    assert 0 < model.last.passes <= most


def test_only_the_newest_states_are_held() -> None:
    kept = KeptStates((-1,))
    for start in range(0, 6000, 2000):
        kept.note([torch.zeros(2000, 1)])
        kept.keep(start, range(2000))
    kept.note([torch.arange(5000.0)[:, None]])
    kept.keep(6000, range(5000))
    [part] = kept.take()
    assert (part.start, len(part.layers[0]), float(part.layers[0][0])) == (11000 - MAX_TOKENS, MAX_TOKENS, 904.0)


def test_a_head_that_the_engine_cannot_feed_is_said(tmp_path: Path) -> None:
    if not is_installed():
        pytest.skip("OpenVINO is not installed: pip install openvino")
    model = tiny_model()
    with pytest.warns(UserWarning, match=r"EAGLE-3 head .* is not used: .* openvino .* \(0, 1, 2\)"):
        LanguageModel(model, byte_tokenizer(), head=save_eagle3(model, tmp_path), engine="openvino", memory=2**20)
