"""The scheduler on an engine without a model: requests that join, leave, fail or stop do not affect others."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Barrier, Event, Thread
from time import sleep
from typing import Any

import pytest

from antiphon.accel.decoding.batch import Batch
from antiphon.accel.decoding.running_request import RunningRequest
from antiphon.accel.decoding.scheduler import scheduler_of
from antiphon.accel.decoding.stats import Step
from antiphon.accel.drafting.budget import FixedBudget
from antiphon.accel.drafting.cost_model import CostModel, StepCost
from antiphon.accel.drafting.draft import EMPTY, Accepted, Draft, Drafter, Logits, Tokens, chain
from antiphon.accel.drafting.drafters import Nothing, SuffixMatch
from antiphon.accel.engines.protocol import SequenceInput
from antiphon.accel.testing.drafters import OracleDrafter, RandomTreeDrafter
from antiphon.accel.testing.table_engine import GreedySampler, TableEngine, TableOutput, TableSequence

VOCAB_SIZE = 50
FLAT = CostModel(StepCost({64: {1: 1.0, 64: 1.1}}), learns=False)
"""Additional rows cost almost nothing, so sharing forward passes is always faster."""

STEEP = CostModel(StepCost({64: {1: 1.0, 2: 3.0, 64: 300.0}}), learns=False)
"""Every additional row costs as much as two plain steps, so sharing forward passes is always slower."""


def follows(tokens: Tokens) -> int:
    return (31 * tokens[-1] + 17 * tokens[-2] + 7 * len(tokens)) % VOCAB_SIZE


def truth(prompt: Tokens, new_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(new_tokens):
        tokens.append(follows(tokens))
    return tokens


def prompt_of(seed: int, length: int = 12) -> list[int]:
    random = Random(seed)
    return [random.randrange(VOCAB_SIZE) for _ in range(length)]


def request_of(prompt: Tokens, new_tokens: int, drafter: Drafter | None = None, rows: int = 16) -> RunningRequest:
    return RunningRequest(
        TableSequence(), drafter or Nothing(), GreedySampler(), TableOutput(prompt, new_tokens), FixedBudget(rows)
    )


def engine(**options: Any) -> TableEngine:
    return TableEngine(follows, VOCAB_SIZE, **({"batch_cost": FLAT} | options))


def emitted(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


DRAFTERS: dict[str, Callable[[list[int]], Drafter]] = {
    "nothing": lambda text: Nothing(),
    "oracle": lambda text: OracleDrafter(text, 5),
    "random trees": lambda text: RandomTreeDrafter(text, 3, VOCAB_SIZE),
    "suffix match": lambda text: SuffixMatch(),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_emitted_tokens_do_not_depend_on_the_drafter(name: str) -> None:
    prompt, table = prompt_of(1), engine()
    expected = truth(prompt, 60)
    request = request_of(prompt, 60, DRAFTERS[name](expected))
    steps = list(scheduler_of(table).steps(request))
    assert [*prompt, *emitted(steps)] == expected == request.output.tokens
    assert steps[-1].finish == "length"
    assert steps[0].prefilled == len(prompt)
    assert len(table.forwards) == len(steps)
    if name == "oracle":
        assert len(steps) <= 1 + 59 // 5


def test_scheduler_and_table_engine_need_no_torch() -> None:
    script = (
        "import sys; from antiphon.accel.testing.table_engine import *;"
        "from antiphon.accel.decoding.scheduler import *;"
        "from antiphon.accel.decoding.running_request import RunningRequest;"
        "from antiphon.accel.drafting.drafters import Blend; from antiphon.accel.drafting.budget import FixedBudget;"
        "engine = TableEngine(lambda tokens: (tokens[-1] + 1) % 9, 9); output = TableOutput([1, 2, 3], 20);"
        "request = RunningRequest(TableSequence(), Blend(), GreedySampler(), output, FixedBudget(8));"
        "steps = list(scheduler_of(engine).steps(request)); print(output.tokens[3:], len(steps) < 20);"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [f"{[(3 + place) % 9 for place in range(1, 21)]} True", "[]"]


class Asking(OracleDrafter):
    """Its `begin` returns a draft for the first forward pass."""

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft:  # type: ignore[override]
        return self.propose(prompt, 99)


def test_a_draft_returned_at_the_start_is_verified_in_the_first_step() -> None:
    prompt, table = prompt_of(2), engine()
    steps = list(scheduler_of(table).steps(request_of(prompt, 12, Asking(truth(prompt, 12), 3))))
    assert [*prompt, *emitted(steps)] == truth(prompt, 12)
    assert (steps[0].accepted, steps[0].prefilled, len(steps[0].tokens)) == (3, len(prompt), 4)


def in_threads(works: Sequence[Callable[[], Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(works)) as pool:
        return [each.result(30) for each in [pool.submit(work) for work in works]]


def test_concurrent_requests_share_forward_passes() -> None:
    table = engine(watch=lambda feeds: sleep(1e-3))
    prompts = [prompt_of(seed) for seed in range(6)]
    together = Barrier(len(prompts))

    def decode(prompt: list[int]) -> list[int]:
        together.wait()
        return [*prompt, *emitted(list(scheduler_of(table).steps(request_of(prompt, 40))))]

    found = in_threads([lambda prompt=prompt: decode(prompt) for prompt in prompts])  # type: ignore[misc]
    assert found == [truth(prompt, 40) for prompt in prompts]
    assert max(map(len, table.forwards)) > 2
    assert len(table.forwards) < 0.7 * 6 * 40


@pytest.mark.parametrize(
    ("prefill_batch_tokens", "expected"),
    [(0, [[300], [200], [600], [500], [20, 20]]), (800, [[300, 200], [600], [500], [20, 20]]), (2000, None)],
)
def test_long_prompts_are_prefilled_together_up_to_the_engines_limit(
    prefill_batch_tokens: int, expected: list[list[int]] | None
) -> None:
    seen: list[list[int]] = []
    table = engine(
        prefill_batch_tokens=prefill_batch_tokens,
        watch=lambda feeds: seen.append([len(feed.pending) for feed in feeds]),
    )
    prompts = [prompt_of(seed, length) for seed, length in enumerate((300, 200, 600, 500, 20, 20))]
    requests = [request_of(prompt, 8) for prompt in prompts]
    for _ in range(8):
        assert not any(isinstance(step, Exception) for step in scheduler_of(table).advance(requests))
    assert [request.output.tokens for request in requests] == [truth(prompt, 8) for prompt in prompts]
    assert seen[:-7] == (expected or [[300, 200, 600, 500], [20, 20]])
    assert seen[-7:] == 7 * [6 * [1]]


def test_a_failing_prompt_does_not_change_the_output_of_others() -> None:
    def watch(feeds: Sequence[SequenceInput]) -> None:
        if any(len(feed.pending) == 301 for feed in feeds):
            raise RuntimeError("of 301 tokens")

    table = engine(prefill_batch_tokens=2000, watch=watch)
    prompts = [prompt_of(seed, length) for seed, length in enumerate((300, 301, 302))]
    found = scheduler_of(table).advance([request_of(prompt, 8) for prompt in prompts])
    assert [str(one) if isinstance(one, Exception) else one.tokens for one in found] == [
        tuple(truth(prompts[0], 1)[-1:]),
        "of 301 tokens",
        tuple(truth(prompts[2], 1)[-1:]),
    ]


def test_requests_do_not_share_forward_passes_if_rows_are_expensive() -> None:
    table = engine(batch_cost=STEEP, watch=lambda feeds: sleep(1e-4))
    prompts = [prompt_of(seed) for seed in range(4)]
    batch = Batch(scheduler_of(table), size=4)
    running = [batch.add(request_of(prompt, 20)) for prompt in prompts]
    assert [[*p, *emitted(list(steps))] for p, steps in zip(prompts, running, strict=True)] == [
        truth(prompt, 20) for prompt in prompts
    ]
    assert set(map(len, table.forwards[4:])) == {1}


class Failing(OracleDrafter):
    """Raises at the n-th draft."""

    def __init__(self, text: Tokens, calls: int) -> None:
        super().__init__(text, 3)
        self.calls = calls

    def propose(self, context: Tokens, budget: int) -> Draft:
        self.calls -= 1
        if self.calls < 0:
            raise LookupError("the drafter has failed")
        return super().propose(context, budget)


class Careless(OracleDrafter):
    """Raises in `observe`."""

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        raise LookupError("the drafter has failed")


def expect_failure(steps: Iterator[Step]) -> str:
    with pytest.raises(LookupError, match="the drafter has failed"):
        list(steps)
    return "failed"


def test_two_hundred_requests_join_leave_and_fail_at_random_without_affecting_each_other() -> None:
    table, random = engine(watch=lambda feeds: sleep(1e-4)), Random(7)
    outcomes: dict[int, Any] = {}

    def decode(number: int) -> None:
        own = Random(number)
        prompt, length = prompt_of(number, own.randint(2, 160)), own.randint(1, 60)
        expected = truth(prompt, length)
        sleep(own.random() * 0.1)
        kind = number % 5
        if kind == 0:
            outcomes[number] = expect_failure(
                scheduler_of(table).steps(request_of(prompt, 60, Failing(truth(prompt, 60), own.randint(0, 8))))
            )
            return
        if kind == 1:
            outcomes[number] = expect_failure(scheduler_of(table).steps(request_of(prompt, 9, Careless(expected, 2))))
            return
        steps = scheduler_of(table).steps(request_of(prompt, length, RandomTreeDrafter(expected, number, VOCAB_SIZE)))
        if kind == 2:
            taken = [step for step, _ in zip(steps, range(own.randint(1, 5)), strict=False)]
            steps.close()  # type: ignore[attr-defined]
            tokens_read = emitted(taken)
            outcomes[number] = tokens_read == expected[len(prompt) :][: len(tokens_read)]
            return
        outcomes[number] = [*prompt, *emitted(list(steps))] == expected

    numbers = list(range(200))
    random.shuffle(numbers)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(decode, numbers, timeout=120))
    assert {number: outcome for number, outcome in outcomes.items() if outcome not in (True, "failed")} == {}
    assert sum(outcome == "failed" for outcome in outcomes.values()) == 80
    assert max(map(len, table.forwards)) > 1
    assert scheduler_of(table).running == ()


def test_after_a_shared_failure_each_request_is_retried_alone_and_only_the_cause_fails() -> None:
    prompts = [prompt_of(seed) for seed in range(4)]
    poisoned: list[TableSequence] = []

    def watch(feeds: Sequence[SequenceInput]) -> None:
        if any(feed.sequence in poisoned for feed in feeds):
            raise MemoryError("no room for these rows")

    table = engine(watch=watch)
    requests = [request_of(prompt, 30, OracleDrafter(truth(prompt, 30), 2)) for prompt in prompts]
    batch = Batch(scheduler_of(table), size=4)
    running = [batch.add(request) for request in requests]
    begun = [[next(steps), next(steps)] for steps in running]
    poisoned.append(requests[2].sequence)  # type: ignore[arg-type]
    for number in (0, 1, 3):
        assert [*prompts[number], *emitted(begun[number]), *emitted(list(running[number]))] == truth(
            prompts[number], 30
        )
    with pytest.raises(MemoryError, match="no room for these rows"):
        list(running[2])


def test_an_interrupt_in_a_shared_forward_pass_stops_only_its_own_thread() -> None:
    prompts = [prompt_of(seed) for seed in range(3)]
    interrupted, ready = Event(), Barrier(3)

    def watch(feeds: Sequence[SequenceInput]) -> None:
        sleep(1e-3)
        if len(feeds) > 1 and not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    table, caught = engine(watch=watch), list[int]()

    def decode(number: int) -> list[int]:
        ready.wait()
        tokens_read: list[int] = []
        try:
            for step in scheduler_of(table).steps(request_of(prompts[number], 40)):
                tokens_read += step.tokens
        except KeyboardInterrupt:
            caught.append(number)
        return [*prompts[number], *tokens_read]

    found = in_threads([lambda number=number: decode(number) for number in range(3)])  # type: ignore[misc]
    assert interrupted.is_set()
    assert len(caught) == 1
    for number, tokens in enumerate(found):
        expected = truth(prompts[number], 40)
        assert tokens == (expected[: len(tokens)] if number in caught else expected)


def test_an_interrupt_in_a_forward_pass_for_another_thread_loses_none_of_its_tokens() -> None:
    others: list[TableSequence] = []

    def watch(feeds: Sequence[SequenceInput]) -> None:
        if others and any(feed.sequence is others[0] for feed in feeds):
            others.clear()
            raise KeyboardInterrupt

    table = engine(batch_cost=STEEP, watch=watch)
    prompts = [prompt_of(seed) for seed in range(2)]
    requests = [request_of(prompt, 30) for prompt in prompts]
    scheduler = scheduler_of(table)
    for _ in range(3):
        scheduler.advance(requests)
    others.append(requests[1].sequence)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        scheduler.advance(requests)
    list(scheduler.steps(requests[1]))  # the other request was interrupted
    assert requests[1].output.tokens == truth(prompts[1], 30)


def test_no_request_waits_for_one_whose_steps_are_not_read() -> None:
    table = engine()
    idle = scheduler_of(table).steps(request_of(prompt_of(1), 30))
    next(idle)
    prompt, done = prompt_of(2), Event()

    def decode() -> None:
        assert [*prompt, *emitted(list(scheduler_of(table).steps(request_of(prompt, 30))))] == truth(prompt, 30)
        done.set()

    Thread(target=decode, daemon=True).start()
    assert done.wait(10)
    assert [1, *emitted(list(idle))][1:] == truth(prompt_of(1), 30)[13:]


def test_requests_read_alternately_by_one_thread_are_decoded_separately() -> None:
    table = engine()
    prompts = [prompt_of(seed) for seed in range(2)]
    streams = [scheduler_of(table).steps(request_of(prompt, 25)) for prompt in prompts]
    pairs = list(zip(*streams, strict=True))
    for number, prompt in enumerate(prompts):
        assert [*prompt, *emitted([pair[number] for pair in pairs])] == truth(prompt, 25)


def test_a_batch_decodes_at_most_its_size_at_once() -> None:
    table = engine()
    prompts = [prompt_of(seed) for seed in range(7)]
    batch = Batch(scheduler_of(table), size=3)
    running = [batch.add(request_of(prompt, 5 + number)) for number, prompt in enumerate(prompts)]
    most = 0
    for number in (4, 0, 6, 2, 1, 3, 5):
        tokens_read: list[int] = []
        for step in running[number]:
            tokens_read += step.tokens
            most = max(most, len(batch.active))
        assert [*prompts[number], *tokens_read] == truth(prompts[number], 5 + number)
    assert most == 3
    assert batch.active == ()


class Verbose(Nothing):
    """Drafts one wrong row."""

    def propose(self, context: Tokens, budget: int) -> Draft:
        return chain([(follows(context) + 1) % VOCAB_SIZE]) if budget else EMPTY


def test_a_wrong_draft_costs_rows_but_changes_no_token() -> None:
    prompt, table = prompt_of(5), engine()
    steps = list(scheduler_of(table).steps(request_of(prompt, 10, Verbose())))
    assert [*prompt, *emitted(steps)] == truth(prompt, 10)
    assert [step.accepted for step in steps] == [0] * 10
    assert sum(step.drafted for step in steps) == 8  # none in the prefill, and none for the last token
