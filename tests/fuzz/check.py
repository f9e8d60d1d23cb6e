"""The property of every case: tokens, logits and reports of the engine equal plain decoding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList, StopStringCriteria

from antiphon.accel.decoding.model_request import head_part
from antiphon.accel.decoding.stats import Step
from antiphon.accel.drafting.draft import Drafter
from antiphon.accel.engines.selection import EngineName
from antiphon.accel.engines.torch.engine import traits_of
from antiphon.accel.generate import Decoder, generate, stream
from tests.accel.adversarial_drafters import RecordingDrafter
from tests.accel.oracles import ATOL, KINKED, RTOL, expect_plain_logits
from tests.fuzz.case import FACTORIES, Case
from tests.fuzz.cast import TOKENIZER, Company, Scripted, device, is_supported, model_of
from tests.tiny import PAD

TIE = 1e-4
"""Largest difference, in nats, of two tokens that float32 sums in another order may swap."""

REFUSALS = (RuntimeError, ValueError)
"""What torch raises if a case forbids every token."""

Verdict = Literal["same", "tie", "error"]


@dataclass(frozen=True, slots=True)
class Plain:
    """The output of `model.generate`: the text, and for each emitted token its logits and processed scores."""

    text: list[int]
    logits: tuple[Tensor, ...]
    scores: tuple[Tensor, ...]
    company: Company


def check(case: Case) -> Verdict:
    """Check one case against both oracles, tokens and logits.

    "same": equal in everything. "tie": the first token that differs was a tie within ``TIE``; all that does not
    follow from the choice is equal. "error": both decoders refuse the same numbers (every token forbidden).

    Raises:
        AssertionError: anything else is different.
    """
    try:
        plain = decode_plainly(case)
    except REFUSALS as error:
        expect_the_same_error(case, error)
        return "error"
    recorder = RecordingDrafter(drafter_of(case, plain.text))
    company = Company(case)
    text, steps = decode(case, recorder, company)
    start = case.padding + len(case.prompt)
    assert [token for step in steps for token in step.tokens] == text[start:], "the steps do not add up to the text"
    expect_whole_steps(case, steps, recorder)
    if not switches_rotation(case) and not reads_padding(case):
        expect_plain_logits(model_for(case), text, recorder.records, every_row=0, padding=case.padding)
    if text != plain.text:
        expect_tie(case, plain, text)
        return "tie"
    assert company.record == plain.company.record, "processors or criteria were called on other texts"
    assert steps[-1].finish == finish_of(case, plain), f"it says it finished by {steps[-1].finish}"
    expect_logits_of(plain, recorder)
    return "same"


def model_for(case: Case) -> Any:
    return model_of(case.family, case.size, case.seed, case.attention)


def engine_of(case: Case) -> EngineName:
    """Return the engine that decodes the case: torch if the case's engine does not support the model."""
    if case.engine == "torch" or device().type != "cpu":
        return "torch"
    return case.engine if is_supported(model_for(case)) else "torch"


def drafter_of(case: Case, text: list[int]) -> Drafter:
    drafter: Drafter = Scripted(case.scripts, text) if case.drafter == "script" else FACTORIES[case.drafter]()
    head: Any = head_part(drafter)
    if head is not None:
        head.model.text = text
    return drafter


def arguments(case: Case, company: Company) -> dict[str, Any]:
    """Return the arguments for both `model.generate` and the engine."""
    given: dict[str, Any] = {
        "max_new_tokens": case.new_tokens,
        "do_sample": case.draw is not None,
        "eos_token_id": list(case.ends) or None,
        "pad_token_id": PAD,
        "prefill_chunk_size": case.chunk,
        "logits_processor": LogitsProcessorList(company.processors),
        "stopping_criteria": StoppingCriteriaList([*company.criteria, *stop_strings(case)]),
        **dict(case.settings),
    }
    if case.padding:
        visible = torch.ones((1, case.padding + len(case.prompt)), dtype=torch.long, device=device())
        visible[:, : case.padding] = 0
        given["attention_mask"] = visible
    return given


def prompt_of(case: Case) -> Tensor:
    return torch.tensor([[*(PAD,) * case.padding, *case.prompt]], device=device())


def stop_strings(case: Case) -> list[StopStringCriteria]:
    return [StopStringCriteria(TOKENIZER, list(case.stop_strings))] if case.stop_strings else []


def decode_plainly(case: Case) -> Plain:
    company = Company(case)
    kept = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    if case.draw is not None:
        torch.manual_seed(case.draw)
    output = model_for(case).generate(prompt_of(case), **arguments(case, company), **kept)
    return Plain(output.sequences[0].tolist(), output.logits, output.scores, company)


def decode(case: Case, drafter: Drafter, company: Company) -> tuple[list[int], list[Step]]:
    """Return the engine's text and steps, through the interface of the case."""
    model, prompt, given = model_for(case), prompt_of(case), arguments(case, company)
    steps: list[Step] = []
    own: dict[str, Any] = {
        "num_draft_tokens": case.num_draft_tokens,
        "drafter": lambda: drafter,
        "cost": KINKED,
        "engine": engine_of(case),
    }
    if case.door == "stream":
        generator = None if case.draw is None else torch.Generator(device()).manual_seed(case.draw)
        steps += stream(model, prompt, references=case.references, generator=generator, **own, **given)
        return [*prompt[0].tolist(), *(token for step in steps for token in step.tokens)], steps
    if case.draw is not None:
        torch.manual_seed(case.draw)
    if case.door == "generate":
        output: Any = generate(model, prompt, references=case.references, on_step=steps.append, **own, **given)
    else:
        decoder = Decoder(on_step=steps.append, **own)
        output = model.generate(prompt, custom_generate=decoder, references=case.references, **given)
    return output[0].tolist(), steps


def expect_the_same_error(case: Case, error: Exception) -> None:
    try:
        decode(case, drafter_of(case, []), Company(case))
    except REFUSALS as ours:
        raised = ours
    else:
        raise AssertionError(f"Plain decoding raises {error}, and the engine does not.")
    assert (type(raised), str(raised)[:40]) == (type(error), str(error)[:40])


def expect_whole_steps(case: Case, steps: Sequence[Step], recorder: RecordingDrafter) -> None:
    assert all(step.finish is None for step in steps[:-1])
    assert all(len(step.tokens) == step.accepted + 1 for step in steps)
    assert all(step.drafted <= (63 if case.num_draft_tokens is None else case.num_draft_tokens) for step in steps)
    assert steps[0].drafted == 0 or "lookahead" in str(case.drafter)  # the only drafter with a draft at the prefill
    assert [(step.tokens, step.drafted) for step in steps] == [
        (record.accepted.tokens, len(record.draft)) for record in recorder.records
    ]


def finish_of(case: Case, plain: Plain) -> str:
    """Return why plain decoding ended: "stop" for an end token, a stop string or a criterion, else "length"."""
    ended = plain.text[-1] in case.ends or any(criterion.answer for criterion in plain.company.criteria)
    ids = torch.tensor([plain.text], device=device())
    ended = ended or any(bool(criterion(ids, None).all()) for criterion in stop_strings(case))
    assert ended or len(plain.text) == case.padding + len(case.prompt) + case.new_tokens
    return "stop" if ended else "length"


def expect_logits_of(plain: Plain, recorder: RecordingDrafter) -> None:
    """Check that every emitted token was chosen from the same logits as in plain decoding."""
    rows = [record.logits[[0, *(row + 1 for row in record.accepted.path)]] for record in recorder.records]
    torch.testing.assert_close(torch.cat(rows).float().cpu(), torch.cat(plain.logits).cpu(), atol=ATOL, rtol=RTOL)


def switches_rotation(case: Case) -> bool:
    """Return whether rotary frequencies depend on the length, so that one forward pass is not plain decoding."""
    return traits_of(model_for(case)).rope is not None


def reads_padding(case: Case) -> bool:
    """Return whether a pass has padding alone: some layers of transformers with state ignore its mask then."""
    return case.chunk == 1 and case.padding > 0 and bool(traits_of(model_for(case)).state_kinds)


def expect_tie(case: Case, plain: Plain, text: list[int]) -> None:
    """Check that the first different token was a tie: in sampling p/q decides, with q fixed by the seed."""
    start = case.padding + len(case.prompt)
    place = next((i for i, pair in enumerate(zip(plain.text, text, strict=False)) if pair[0] != pair[1]), None)
    assert place is not None, f"one text ends early: {text[start:]} is not {plain.text[start:]}"
    weights = plain.scores[place - start][0]
    if case.draw is not None:
        torch.manual_seed(case.draw)
        for scores in plain.scores[: place - start]:
            torch.multinomial(scores.softmax(dim=-1), num_samples=1)
        weights = weights.softmax(dim=-1).log() - torch.empty_like(weights).exponential_().log()
    assert int(weights.argmax()) == plain.text[place], "the seed does not explain plain decoding's own draw"
    gap = float(weights.max() - weights[text[place]])
    assert gap < TIE, f"token {place - start} is {text[place]}, not {plain.text[place]}, and their gap is {gap:.2g}"
