"""The proposer without vLLM: what it drafts, from whose texts, and that nothing of it can hurt an engine."""

from __future__ import annotations

import logging
import random
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.accel.drafting.draft import Draft, Tokens
from antiphon.accel.drafting.drafters.suffix_match import SuffixMatch
from antiphon.integrations.vllm.admission import Sources
from tests.integrations.vllm.running import Engine, Request, proposer


def words(tenant: int, count: int = 60) -> list[int]:
    """Tokens that nobody but this tenant has."""
    first = 1000 * (1 + tenant)
    return random.Random(tenant).sample(range(first, first + 1000), count)


def to_end(engine: Engine) -> None:
    while engine.running:
        engine.step()


def test_what_a_reference_says_is_drafted_and_saves_steps() -> None:
    said = words(1)
    plain, told = Request("plain", [7, 8], said), Request("told", [7, 8], said, Sources((said,)))
    for request in (plain, told):
        engine = Engine(proposer())
        engine.add(request)
        to_end(engine)
    assert plain.steps == len(said), "nothing to copy"
    assert told.steps < len(said) / 5
    assert all(len(draft) <= 12 for draft in told.drafted)


def test_a_prediction_is_drafted_from_the_first_token_on() -> None:
    said = words(1)
    request = Request("a", [7, 8, 9, 10], said, Sources(prediction=said[1:]))
    first = Request("b", [7, 8, 9, 10], said, Sources(prediction=said))
    for each in (request, first):
        engine = Engine(proposer())
        engine.add(each)
        to_end(engine)
    assert first.steps < len(said) / 5
    assert first.drafted[0] == said[1:13]


def test_the_prompt_is_always_a_reference() -> None:
    said = words(1)
    request = Request("a", [*said, 5, said[0]], said[1:])
    engine = Engine(proposer())
    engine.add(request)
    to_end(engine)
    assert request.steps < len(said) / 4


def test_forty_tenants_are_never_drafted_from_each_others_texts() -> None:
    """Requests wait, come back, are aborted and reuse ids while rows move; every draft is looked at, row by row."""
    chance = random.Random(0)
    engine = Engine(proposer(), rows=48)
    tenants = {}
    for tenant in range(40):
        own = words(tenant)
        tenants[tenant] = own
        cut = chance.randrange(5, 40)
        engine.add(Request(f"id-{tenant % 40}", [3, 3, own[0]], own[1:cut] + own[: 60 - cut], Sources((own,), own[3:])))
    waiting: list[Request] = []
    seen = 0
    for turn in range(120):
        if engine.running:
            engine.step()
        for request in engine.running:
            known = set(request.prompt) | set(tenants[int(request.name[3:])])
            drafted = set(request.drafted[-1])
            seen += len(drafted)
            assert drafted <= known, f"a draft of {request.name} holds another tenant's tokens"
        if waiting and turn % 3 == 0:
            engine.resume(waiting.pop())
        elif len(engine.running) > 4:
            picked = chance.choice(engine.running)
            if turn % 5 == 0:  # aborted, and the same id is given to somebody else's request at once
                engine.abort(picked)
                other = (int(picked.name[3:]) + 1) % 40
                tenants[int(picked.name[3:])] = words(other + 40)
                own = tenants[int(picked.name[3:])]
                engine.drafts.pop(picked.name, None)
                engine.add(Request(picked.name, [3, own[0]], own[1:], Sources((own,))))
            else:
                engine.wait(picked)
                engine.drafts.pop(picked.name, None)
                waiting.append(picked)
        chance.shuffle(engine.running)
    assert seen > 500
    assert engine.proposer.failures == 0


def test_a_request_under_the_id_of_one_that_has_ended_is_another_request() -> None:
    """The very same prompt and first token, so that nothing but who it belongs to tells the two apart."""
    engine, said = Engine(proposer()), words(1)
    first = Request("same", [7, 8], said, Sources((said,)))
    engine.add(first)
    engine.step()
    engine.abort(first)
    engine.drafts.clear()
    second = Request("same", [7, 8], said)
    engine.add(second)
    to_end(engine)
    assert first.drafted[0]
    assert not any(second.drafted), "drafted from the first one's references"


def test_nothing_is_kept_of_requests_that_have_ended() -> None:
    engine = Engine(proposer())
    for tenant in range(200):
        engine.add(Request(f"id-{tenant}", [1, 2], words(tenant, 20), Sources((words(tenant),))))
        if tenant % 8 == 7:
            to_end(engine)
    engine.add(Request("last", [1, 2], words(3, 5)))
    engine.step()
    assert engine.proposer.kept == 1


class Failing(SuffixMatch):
    """Fails for requests whose prompt holds the token 666."""

    def begin(self, prompt: Tokens, references: Any) -> None:
        self.fails = 13 in prompt
        if 666 in prompt:
            raise MemoryError("begin")
        super().begin(prompt, references)

    def propose(self, context: Tokens, budget: int) -> Draft:
        if self.fails:
            raise RuntimeError("propose")
        return super().propose(context, budget)


def test_a_request_that_cannot_be_drafted_for_drafts_nothing_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Engine(proposer(make=Failing))
    said = words(1)
    good, bad, worse = (
        Request(name, [token], said, Sources((said,))) for name, token in (("g", 1), ("b", 13), ("w", 666))
    )
    for request in (good, bad, worse):
        engine.add(request)
    with caplog.at_level(logging.ERROR, logger="vllm.antiphon"):
        to_end(engine)
    assert good.steps < 20 < bad.steps == worse.steps == len(said)
    assert engine.proposer.failures == 2, "each is tried once"
    assert len(caplog.records) == 1, "and the first is logged"


def test_a_batch_of_another_shape_drafts_nothing_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    drafting = proposer()
    engine = Engine(drafting)
    engine.add(Request("a", [1], words(1)))
    engine.step()
    engine.input_batch = SimpleNamespace()  # as a later vLLM might have it
    drafting.meet(engine, {})
    with caplog.at_level(logging.ERROR, logger="vllm.antiphon"):
        assert drafting.propose([[1], [2]], engine.counts, engine.ids) == [[], []]
    assert drafting.failures == 1


def test_without_a_runner_and_while_a_prompt_is_read_nothing_is_drafted() -> None:
    drafting = proposer()
    assert drafting.propose([[1]], None, None) == [[]]
    engine = Engine(drafting)
    engine.add(Request("a", [1, 2, 3], words(1), Sources((words(1),))))
    engine.input_batch.req_ids = ["a"]
    drafting.meet(engine, {"a": 3})
    assert drafting.propose([[]], engine.counts, engine.ids) == [[]]


def test_speculation_gives_way_where_rows_are_dear() -> None:
    """Steps that take a time proportional to their rows: rows of small chances stop, rows that are certain go on."""
    drafting = proposer()
    for _ in range(200):
        for rows in (1, 2, 4, 8, 16):
            drafting.budget.spent(rows, 0.01 * rows)
    unsure = [5, 1, 5, 2, 5, 3, 5, 4, 5, 9] * 4
    request = Request("a", unsure, [5, 6, 5, 7, 5, 8, 5, 10], Sources())
    engine = Engine(drafting)
    engine.add(request)
    engine.step()
    assert request.drafted == [[]]


def test_what_a_vllm_took_back_is_read_anew() -> None:
    said = words(1)
    request = Request("a", [7, 8], said, Sources((said,)))
    engine = Engine(proposer())
    engine.add(request)
    engine.step()
    engine.step()
    request.emitted -= 3
    engine.drafts = {}
    to_end(engine)
    assert engine.proposer.failures == 0
    assert all(set(draft) <= set(said) for draft in request.drafted)
