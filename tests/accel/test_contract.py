"""The contract table: every drafter, every family, every engine, greedy and sampled, against both oracles."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from antiphon.accel.drafting.draft import Draft, Drafter, DrafterFactory, Tokens
from antiphon.accel.drafting.drafters import DRAFTERS, WINDOW, Bita, Blend, Lookahead, Nothing, RecyclingTable
from antiphon.accel.drafting.drafters.copying import Copying
from antiphon.accel.drafting.drafters.head import Head
from antiphon.accel.engines.openvino.runtime import is_installed
from antiphon.accel.engines.selection import EngineName, select_engine
from antiphon.accel.engines.torch.bita_weights import BitaWeights
from antiphon.accel.engines.torch.engine import engine_of
from antiphon.accel.generate import generate
from recipes.bita.initial import initial_bita_weights
from tests.accel.adversarial_drafters import (
    OracleDrafter,
    ProbingDrafter,
    RandomTreeDrafter,
    RecordingDrafter,
    WrongDrafter,
)
from tests.accel.adversarial_heads import AdversarialHead
from tests.accel.oracles import KINKED, expect_close, expect_plain_logits
from tests.tiny import FAMILIES, VOCAB_SIZE, tiny_model

pytestmark = pytest.mark.slow

MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 0.9, "top_k": 30, "top_p": 0.95},
    "penalised": {"do_sample": True, "top_k": 3, "repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
}


WARM = RecyclingTable()
"""A recycling table shared by the models of all families, in all modes."""


def ignorant(text: Tokens, make: DrafterFactory) -> Drafter:
    return make()


# Each entry creates a drafter from the expected text; only the test drafters look at that text.
TABLE: dict[str, Callable[[Tokens], Drafter]] = {
    **{name: partial(ignorant, make=make) for name, make in DRAFTERS.items()},
    "blend+lookahead": lambda text: Blend(window=WINDOW),
    "copying, n=3, k=4": lambda text: Copying(n=3, k=4),
    "lookahead, 3, 4, 2": lambda text: Lookahead(3, 4, 2),
    "lookahead, 4, 2, 3, unread": lambda text: Lookahead(4, 2, 3, prompt_as_reference=False),
    "blend, warm": lambda text: Blend(recycling=WARM),
    "blend, random head": lambda text: Blend(head=AdversarialHead("random")),
    "blend, NaN head": lambda text: Blend(head=AdversarialHead("nan")),
    "wrong head": lambda text: Head(AdversarialHead("wrong")),
    "oracle": partial(OracleDrafter, depth=5),
    "wrong": partial(WrongDrafter, depth=5),
    "random trees": partial(RandomTreeDrafter, seed=1, vocab_size=VOCAB_SIZE),
    "random trees 2": partial(RandomTreeDrafter, seed=2, vocab_size=VOCAB_SIZE),
    "probing": lambda text: ProbingDrafter(RandomTreeDrafter(text, 3, VOCAB_SIZE), text, 5, VOCAB_SIZE),
}


class Asking(Bita):
    """Puts BiTA's masks behind the rows of random trees; some of these rows are accepted."""

    def __init__(self, text: Tokens, learned: BitaWeights) -> None:
        super().__init__(learned)
        self.tree_drafter = RandomTreeDrafter(text, 6, VOCAB_SIZE)

    def propose(self, context: Tokens, budget: int) -> Draft:
        draft = self.tree_drafter.propose(context, budget)
        fading = tuple(0.9**depth for depth in draft.depths)
        return self.with_masks(Draft(draft.tokens, draft.parents, fading), budget)


# Drafters that need BiTA weights for the model; here the weights are random.
TAUGHT: dict[str, Callable[[Tokens, BitaWeights], Drafter]] = {
    "bita": lambda text, learned: Bita(learned),
    "bita, below random trees": Asking,
    "bita and blend": lambda text, learned: Blend(learned),
    "all together": lambda text, learned: Blend(learned, window=(3, 3, 3)),
}


def loud(model: Any) -> BitaWeights:
    """Return BiTA weights with a prefix of keys and values of norm 100, which only masks may attend to."""
    learned = initial_bita_weights(model, prefix=5, masks=3)
    keys, values = (100 * each / each.norm(dim=-1, keepdim=True) for each in (learned.keys, learned.values))
    return replace(learned, keys=keys, values=values)


def drafter_of(name: str, text: Tokens, model: Any) -> Drafter:
    return TAUGHT[name](text, loud(model)) if name in TAUGHT else TABLE[name](text)


# Every drafter runs on every engine, except that only torch supports BiTA's masks.
CELLS = [(name, "torch") for name in [*TABLE, *TAUGHT]] + [(name, "openvino") for name in TABLE]


def is_usual(name: str, family: str, mode: str) -> bool:
    """Return whether `make test` runs a cell: all drafters with one family, and random trees with all families."""
    is_plain_mode = mode in ("greedy", "sampled")
    return (family == "llama" and is_plain_mode) or (name == "random trees" and mode == "greedy")


def cells(modes: Iterable[str] = MODES) -> Iterator[Any]:
    """Yield every cell with these modes; `make test-exhaustive` runs those that `make test` leaves out."""
    for (name, engine), family, mode in product(CELLS, FAMILIES, modes):
        marks = [] if is_usual(name, family, mode) else [pytest.mark.exhaustive]
        yield pytest.param(name, family, mode, engine, marks=marks)


@cache
def model_of(family: str) -> Any:
    return tiny_model(family)


@cache
def prepared(family: str, engine: EngineName) -> Any:
    """Return the model after its engine's self-tests, which run on torch."""
    model = model_of(family)
    engine_of(model).head = AdversarialHead()  # so that OpenVINO's graph gives hidden states
    if engine == "openvino":
        if not is_installed():
            pytest.skip("OpenVINO is not installed: pip install openvino")
        _ = select_engine(model, engine).engine.bigrams
    return model


def prompt_of(seed: int, length: int = 40) -> Tensor:
    return torch.randint(1, 250, (1, length), generator=torch.Generator().manual_seed(seed))


@cache
def plain(family: str, mode: str, seed: int = 3) -> Tensor:
    torch.manual_seed(seed)
    output: Tensor = model_of(family).generate(prompt_of(seed), max_new_tokens=48, eos_token_id=None, **MODES[mode])
    return output


def drafted(recorder: RecordingDrafter, family: str, mode: str, engine: EngineName, **options: Any) -> list[int]:
    """Return the text, after checking that no engine but torch runs a forward pass of torch."""
    model, forwards = prepared(family, engine), []
    hook = model.register_forward_pre_hook(lambda *_: forwards.append(1))
    torch.manual_seed(3)
    output: Any = generate(
        model,
        prompt_of(3),
        drafter=lambda: recorder,
        engine=engine,
        eos_token_id=None,
        max_new_tokens=48,
        **options,
        **MODES[mode],
    )
    hook.remove()
    assert bool(forwards) == (engine == "torch")
    tokens: list[int] = output[0].tolist()
    return tokens


@cache
def undrafted(family: str, mode: str, engine: EngineName) -> tuple[list[int], Tensor]:
    """Return the text of an engine without drafts, and its logits for each new token."""
    recorder = RecordingDrafter(Nothing())
    text = drafted(recorder, family, mode, engine, num_draft_tokens=0)
    return text, torch.cat([record.logits for record in recorder.records])


def expect_own_logits(recorder: RecordingDrafter, logits: Tensor) -> None:
    """Check that every kept row has the logits of the same engine without drafts."""
    for record in recorder.records:
        kept = record.logits[[0, *(row + 1 for row in record.accepted.path)]]
        expect_close(kept, logits[record.length - 40 :][: len(kept)])


@pytest.mark.parametrize(("name", "family", "mode", "engine"), [*cells()])
def test_tokens_and_logits_equal_plain_decoding(name: str, family: str, mode: str, engine: EngineName) -> None:
    model, text = model_of(family), plain(family, mode)[0].tolist()
    recorder = RecordingDrafter(drafter_of(name, text, model))
    references = [text[40:60], prompt_of(9)[0].tolist(), text[55:88]]
    assert drafted(recorder, family, mode, engine, num_draft_tokens=32, references=references) == text
    expect_plain_logits(model, text, recorder.records)
    # The expected text comes from torch; plain decoding by this engine must give the same text.
    if engine != "torch":
        alone, logits = undrafted(family, mode, engine)
        assert alone == text
        expect_own_logits(recorder, logits)
    if name == "oracle":
        assert len(recorder.records) == 1 + 8  # the prefill's token, then 47 tokens six at a time


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["blend+lookahead", "all together"])
def test_a_lookahead_window_in_the_tree_changes_no_kept_row(name: str, mode: str) -> None:
    """The request has no references, because `Blend` uses its Lookahead window only then."""
    model, expected = model_of("llama"), plain("llama", mode)
    text = expected[0].tolist()
    recorder = RecordingDrafter(drafter_of(name, text, model))
    torch.manual_seed(3)
    options: dict[str, Any] = {
        "num_draft_tokens": 32,
        "drafter": lambda: recorder,
        "eos_token_id": None,
        "max_new_tokens": 48,
    }
    output: Any = generate(model, prompt_of(3), **options, **MODES[mode])
    assert output.tolist() == expected.tolist()
    expect_plain_logits(model, text, recorder.records)
    probes = [record.draft.tokens[record.draft.num_candidates :] for record in recorder.records]
    assert sum(any(token >= 0 for token in asked) for asked in probes) > len(probes) / 2
    assert any(token < 0 for asked in probes for token in asked) == (name == "all together")


@pytest.mark.parametrize(("name", "family", "mode", "engine"), [*cells(["greedy"])])
def test_tokens_and_logits_equal_plain_decoding_for_any_row_selection(
    name: str, family: str, mode: str, engine: EngineName
) -> None:
    model, text = model_of(family), plain(family, mode)[0].tolist()
    recorder = RecordingDrafter(drafter_of(name, text, model))
    assert drafted(recorder, family, mode, engine, references=[text[40:60]], cost=KINKED) == text
    expect_plain_logits(model, text, recorder.records, every_row=1)
