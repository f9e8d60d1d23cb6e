"""The scheduler on an engine without a model: requests that join, leave, fail or stop do not affect others."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from threading import Barrier, Event, Thread, local, main_thread
from threading import enumerate as enumerate_threads
from time import sleep
from typing import Any
from weakref import ref

import pytest

from antiphon.accel.decoding.engine_request import Batch
from antiphon.accel.decoding.scheduler import Scheduler, scheduler_of
from antiphon.accel.decoding.stats import Step
from antiphon.accel.decoding.step import Request
from antiphon.accel.drafting.draft import Accepted, Draft, Drafter, Logits, Tokens
from antiphon.accel.drafting.drafters import Nothing, SuffixMatch
from antiphon.accel.engines.protocol import SequenceInput, ThreadSettings
from tests.accel.adversarial_drafters import OracleDrafter, RandomTreeDrafter
from tests.accel.table_engine import (
    VOCAB_SIZE,
    TableEngine,
    TableSequence,
    emitted,
    engine,
    prompt_of,
    request_of,
    truth,
)

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
        "import sys; from tests.accel.table_engine import *;"
        "from antiphon.accel.decoding.scheduler import *;"
        "from antiphon.accel.decoding.step import Request;"
        "from antiphon.accel.drafting.drafters import Blend; from antiphon.accel.drafting.budget import FixedBudget;"
        "engine = TableEngine(lambda tokens: (tokens[-1] + 1) % 9, 9); output = TableOutput([1, 2, 3], 20);"
        "request = Request(TableSequence(), Blend(), GreedySampler(), output, FixedBudget(8));"
        "steps = list(scheduler_of(engine).steps(request)); print(output.tokens[3:], len(steps) < 20);"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [f"{[(3 + place) % 9 for place in range(1, 21)]} True", "[]"]


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


def test_requests_of_threads_with_other_settings_share_no_forward_pass() -> None:
    own = local()

    class WithSettings(TableEngine):
        def thread_settings(self) -> ThreadSettings:
            return ThreadSettings(num_threads=own.number)

    table = engine(WithSettings, watch=lambda feeds: sleep(1e-3))
    requests = [request_of(prompt_of(seed), 30) for seed in range(6)]
    together = Barrier(len(requests))

    def decode(place: int) -> None:
        own.number = place % 2
        together.wait()
        list(scheduler_of(table).steps(requests[place]))

    in_threads([lambda place=place: decode(place) for place in range(6)])  # type: ignore[misc]
    number_of = {request.sequence: place % 2 for place, request in enumerate(requests)}
    shared = [{number_of[sequence] for sequence in sequences} for sequences in table.forwards]
    assert max(map(len, table.forwards)) > 1
    assert max(map(len, shared)) == 1


def test_a_request_whose_steps_are_not_read_to_the_end_is_not_running_any_more() -> None:
    table = engine()
    steps = scheduler_of(table).steps(request_of(prompt_of(3), 20))
    next(steps)
    assert len(scheduler_of(table)._running) == 1
    steps.close()  # type: ignore[attr-defined]
    assert not scheduler_of(table)._running


def test_an_error_of_a_drafter_is_raised_to_its_request_only() -> None:
    class Broken(Nothing):
        def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
            raise ValueError("no drafts")

    table = engine()
    requests = [request_of(prompt_of(1), 5), request_of(prompt_of(2), 5, Broken()), request_of(prompt_of(3), 5)]
    one, broken, other = scheduler_of(table).advance(requests)
    assert [type(one), type(other)] == [Step, Step]
    assert str(broken) == "no drafts"


def test_a_forked_process_decodes_with_a_thread_of_its_own() -> None:
    script = (
        "import os; from tests.accel.table_engine import *; from antiphon.accel.decoding.scheduler import *;"
        "table = engine(); list(scheduler_of(table).steps(request_of(prompt_of(1), 5)));"
        "child = os.fork();"
        "child or list(scheduler_of(table).steps(request_of(prompt_of(2), 5)));"
        "child or os._exit(7);"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    root = Path(__file__).parents[2]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=60)
    assert run.stdout == "7\n", run.stderr


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
    assert not scheduler_of(table)._running


def test_after_a_shared_failure_each_request_is_retried_alone_and_only_the_cause_fails() -> None:
    prompts = [prompt_of(seed) for seed in range(4)]
    poisoned: list[TableSequence] = []

    def watch(feeds: Sequence[SequenceInput]) -> None:
        if any(feed.sequence in poisoned for feed in feeds):
            raise MemoryError("no room for these rows")

    table = engine(watch=watch)
    requests = [request_of(prompt, 30, OracleDrafter(truth(prompt, 30), 2)) for prompt in prompts]
    batch = Batch(scheduler_of(table), requests, 4)
    running = [batch.steps_of(request) for request in requests]
    begun = [[next(steps), next(steps)] for steps in running]
    poisoned.append(requests[2].sequence)  # type: ignore[arg-type]
    for number in (0, 1, 3):
        assert [*prompts[number], *emitted(begun[number]), *emitted(list(running[number]))] == truth(
            prompts[number], 30
        )
    with pytest.raises(MemoryError, match="no room for these rows"):
        list(running[2])


def interrupt_main_thread(scheduler: Scheduler, request: Request) -> None:
    """Deliver Ctrl-C, which reaches the main thread, and wait until it has left the request's step."""
    step: Any = scheduler._steps.get(request)
    signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)
    for _ in range(3000):
        if step.is_abandoned:
            return
        sleep(1e-3)


def test_an_interrupt_in_a_shared_forward_pass_stops_the_request_of_the_main_thread_only() -> None:
    prompts = [prompt_of(seed) for seed in range(3)]
    interrupted, ready = Event(), Barrier(3)

    def watch(feeds: Sequence[SequenceInput]) -> None:
        sleep(1e-3)
        is_shared = len(feeds) > 1 and requests[0].sequence in [feed.sequence for feed in feeds]
        if is_shared and not interrupted.is_set():
            interrupted.set()
            interrupt_main_thread(scheduler_of(table), requests[0])

    table = engine(watch=watch)
    requests = [request_of(prompt, 40) for prompt in prompts]

    def decode(number: int) -> list[int]:
        ready.wait()
        return [*prompts[number], *emitted(list(scheduler_of(table).steps(requests[number])))]

    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(decode, number) for number in (1, 2)]
        with pytest.raises(KeyboardInterrupt):
            decode(0)
        assert [other.result(30) for other in others] == [truth(prompt, 40) for prompt in prompts[1:]]
    assert interrupted.is_set()
    assert not scheduler_of(table)._running


def test_a_request_continues_after_an_interrupt_without_losing_tokens() -> None:
    interrupts = iter([False, False, True])

    def watch(feeds: Sequence[SequenceInput]) -> None:
        if next(interrupts, False):
            interrupt_main_thread(scheduler, request)

    prompt, scheduler = prompt_of(0), scheduler_of(table := engine(watch=watch))
    request = request_of(prompt, 30)
    scheduler.advance([request])
    scheduler.advance([request])
    with pytest.raises(KeyboardInterrupt):
        scheduler.advance([request])
    list(scheduler.steps(request))
    assert request.output.tokens == truth(prompt, 30)
    assert len(table.forwards) == 30


def test_waiting_steps_of_an_interrupted_caller_are_not_computed() -> None:
    def watch(feeds: Sequence[SequenceInput]) -> None:
        if len(table.forwards) <= 1:
            interrupt_main_thread(scheduler, requests[0])

    scheduler = scheduler_of(table := engine(watch=watch))
    requests = [request_of(prompt_of(seed), 30) for seed in (0, 1)]
    for request in requests:
        request.must_run_alone = True
    with pytest.raises(KeyboardInterrupt):
        scheduler.advance(requests)
    for step in list(scheduler._steps.values()):
        assert step.done.wait(30)
    assert len(table.forwards) == 1


def test_memory_is_released_after_the_forward_pass_of_an_interrupted_request() -> None:
    events: list[str] = []

    def watch(feeds: Sequence[SequenceInput]) -> None:
        interrupt_main_thread(scheduler, request)
        events.append("computed")

    scheduler = scheduler_of(table := engine(watch=watch))
    request = request_of(prompt_of(0), 30)
    with pytest.raises(KeyboardInterrupt):
        scheduler.advance([request])
    scheduler.after_forward(request, lambda: events.append("released"))
    other = request_of(prompt_of(1), 1)
    table.watch = lambda feeds: None
    scheduler.advance([other])
    assert events == ["computed", "released"]


def test_a_request_may_decode_another_one_on_the_same_engine() -> None:
    """A drafter or logits processor that asks the same model runs in the engine's thread."""
    table, inner = engine(), prompt_of(4)

    class Asker(Nothing):
        def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
            assert emitted(list(scheduler_of(table).steps(request_of(inner, 3)))) == truth(inner, 3)[-3:]

    prompt = prompt_of(3)
    assert emitted(list(scheduler_of(table).steps(request_of(prompt, 5, Asker())))) == truth(prompt, 5)[-5:]


def test_the_thread_ends_with_its_engine() -> None:
    table = engine()
    list(scheduler_of(table).steps(request_of(prompt_of(0), 3)))
    thread = next(thread for thread in enumerate_threads() if thread is scheduler_of(table)._thread)
    gone = ref(table)
    del table
    assert gone() is None
    thread.join(10)
    assert not thread.is_alive()


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


def test_a_batch_decodes_at_most_its_size_at_once() -> None:
    table = engine()
    prompts = [prompt_of(seed) for seed in range(7)]
    requests = [request_of(prompt, 5 + number) for number, prompt in enumerate(prompts)]
    batch = Batch(scheduler_of(table), requests, 3)
    running = [batch.steps_of(request) for request in requests]
    most = 0
    for number in (4, 0, 6, 2, 1, 3, 5):
        tokens_read: list[int] = []
        for step in running[number]:
            tokens_read += step.tokens
            most = max(most, len(batch._active))
        assert [*prompts[number], *tokens_read] == truth(prompts[number], 5 + number)
    assert most == 3
    assert batch._active == []
