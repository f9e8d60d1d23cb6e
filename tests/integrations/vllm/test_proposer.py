"""The proposer without vLLM: its drafts, the isolation of tenants, and its failures."""

import logging
import random
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.accel.drafting.draft import Draft, Tokens
from antiphon.accel.drafting.drafters.suffix_match import SuffixMatch
from antiphon.integrations.vllm.admission import Sources
from tests.integrations.vllm.fake_engine import Engine, Request, make_proposer


def words(tenant: int, count: int = 60) -> list[int]:
    """Return tokens that no other tenant has."""
    first = 1000 * (1 + tenant)
    return random.Random(tenant).sample(range(first, first + 1000), count)


def test_drafts_from_a_reference_save_steps() -> None:
    answer = words(1)
    plain, drafted = Request("plain", [7, 8], answer), Request("drafted", [7, 8], answer, Sources((answer,)))
    for request in (plain, drafted):
        engine = Engine(make_proposer())
        engine.add(request)
        engine.run()
    assert plain.steps == len(answer), "there is nothing to copy"
    assert drafted.steps < len(answer) / 5
    assert all(len(draft) <= 12 for draft in drafted.drafts)


def test_a_prediction_is_drafted_after_the_first_token() -> None:
    answer = words(1)
    request = Request("a", [7, 8, 9, 10], answer, Sources(prediction=answer[1:]))
    first = Request("b", [7, 8, 9, 10], answer, Sources(prediction=answer))
    for each in (request, first):
        engine = Engine(make_proposer())
        engine.add(each)
        engine.run()
    assert first.steps < len(answer) / 5
    assert first.drafts[0] == answer[1:13]


def test_drafts_never_hold_tokens_of_another_tenant() -> None:
    """Requests are preempted, resumed and aborted, and reuse ids, while rows move; every draft is checked."""
    chance = random.Random(0)
    engine = Engine(make_proposer(), rows=48)
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
            drafted = set(request.drafts[-1])
            seen += len(drafted)
            assert drafted <= known, f"a draft of {request.name} holds another tenant's tokens"
        if waiting and turn % 3 == 0:
            engine.resume(waiting.pop())
        elif len(engine.running) > 4:
            picked = chance.choice(engine.running)
            if turn % 5 == 0:  # aborted, and another tenant's request gets the same id at once
                engine.abort(picked)
                other = (int(picked.name[3:]) + 1) % 40
                tenants[int(picked.name[3:])] = words(other + 40)
                own = tenants[int(picked.name[3:])]
                engine.drafts.pop(picked.name, None)
                engine.add(Request(picked.name, [3, own[0]], own[1:], Sources((own,))))
            else:
                engine.preempt(picked)
                engine.drafts.pop(picked.name, None)
                waiting.append(picked)
        chance.shuffle(engine.running)
    assert seen > 500
    assert engine.proposer.failures == 0


def test_a_reused_request_id_does_not_reuse_references() -> None:
    """Both requests have the same prompt and first token, so only their state tells them apart."""
    engine, answer = Engine(make_proposer()), words(1)
    first = Request("same", [7, 8], answer, Sources((answer,)))
    engine.add(first)
    engine.step()
    engine.abort(first)
    engine.drafts.clear()
    second = Request("same", [7, 8], answer)
    engine.add(second)
    engine.run()
    assert first.drafts[0]
    assert not any(second.drafts), "drafted from the first request's references"


def test_state_of_ended_requests_is_dropped() -> None:
    engine = Engine(make_proposer())
    for tenant in range(200):
        engine.add(Request(f"id-{tenant}", [1, 2], words(tenant, 20), Sources((words(tenant),))))
        if tenant % 8 == 7:
            engine.run()
    engine.add(Request("last", [1, 2], words(3, 5)))
    engine.step()
    assert (len(engine.proposer._requests), len(engine.proposer._failed)) == (1, 0)


class FailingDrafter(SuffixMatch):
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


def test_a_failing_drafter_leaves_the_other_requests_drafting(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(make_proposer(make_drafter=FailingDrafter))
    answer = words(1)
    good, bad, worse = (
        Request(name, [token], answer, Sources((answer,))) for name, token in (("g", 1), ("b", 13), ("w", 666))
    )
    for request in (good, bad, worse):
        engine.add(request)
    with caplog.at_level(logging.ERROR, logger="vllm.antiphon"):
        engine.run()
    assert good.steps < 20 < bad.steps == worse.steps == len(answer)
    assert engine.proposer.failures == 2, "each is tried once"
    assert len(caplog.records) == 1, "only the first failure is logged"


def test_an_unknown_batch_format_is_counted_as_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    drafting = make_proposer()
    engine = Engine(drafting)
    engine.add(Request("a", [1], words(1)))
    engine.step()
    engine.input_batch = SimpleNamespace()  # as a later version of vLLM might
    drafting.prepare_step(engine, {})
    with caplog.at_level(logging.ERROR, logger="vllm.antiphon"):
        assert drafting.propose([[1], [2]], engine.counts, engine.ids) == [[], []]
    assert drafting.failures == 1


def test_drafts_end_before_the_minimum_number_of_tokens_is_reached() -> None:
    """Otherwise Model Runner V1 would forbid a stop token after the draft."""
    answer = words(1)
    request = Request("a", [7, 8], answer, Sources((answer,)))
    engine = Engine(make_proposer())
    engine.add(request)
    request.state.sampling_params.min_tokens = 17
    emitted = []
    while engine.running:
        engine.step()
        emitted.append(request.emitted)
    lengths = list(map(len, request.drafts))
    assert emitted[:4] == [1, 14, 17, 30]
    assert lengths[:3] == [12, 2, 12]


def test_a_context_that_vllm_shortened_is_read_again() -> None:
    answer = words(1)
    request = Request("a", [7, 8], answer, Sources((answer,)))
    engine = Engine(make_proposer())
    engine.add(request)
    engine.step()
    engine.step()
    request.emitted -= 3
    engine.drafts = {}
    engine.run()
    assert engine.proposer.failures == 0
    assert all(set(draft) <= set(answer) for draft in request.drafts)


@pytest.mark.parametrize("bad", [50, 51, 2**40, 2**63, -5])
def test_drafts_end_before_a_token_id_outside_the_vocabulary(bad: int) -> None:
    """Admission rejects such ids; this tests arguments that reach the worker without admission."""
    answer = [10, 11, 12, 13, 14, 15]
    engine = Engine(make_proposer(vocab_size=50))
    request = Request("a", [7, 8, 9], answer, Sources(prediction=[10, 11, 12, bad, 14, 15]))
    engine.add(request)
    other = Request("b", [7, 8, 9], answer, Sources(prediction=answer))
    engine.add(other)
    engine.run()
    assert all(0 <= token < 50 for draft in request.drafts for token in draft)
    assert other.steps < len(answer)
