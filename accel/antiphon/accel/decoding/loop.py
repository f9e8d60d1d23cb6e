"""The loop: draft, weigh, one forward, walk, keep; for one text, and for all that threads decode at once on an engine.

Whoever wants a step of a text asks for it. The thread that has asked first has one forward run for all that ask at that
moment, while the others wait until their step is done or it is their turn (flat combining: Hendler et al. 2010). So
texts join and leave between any two forwards, an error stays with the text that caused it, and nothing runs for texts
that nobody reads. Knows engines by their protocol alone.

A text that is decoded by itself is computed in its reader's thread. Where several share forwards, one thread of the
loop's computes for all: threads that take turns would each have threads of torch's beside them, which slow each other
down; and Ctrl-C, which comes to the main thread, never finds a forward of somebody else half-done.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from math import inf
from threading import Event, get_ident
from time import perf_counter, sleep
from typing import cast
from weakref import ref

from antiphon.accel.decoding.running_text import Text
from antiphon.accel.decoding.stats import Step
from antiphon.accel.drafting.budget import fillers, saved, share_rows, span
from antiphon.accel.drafting.draft import EMPTY, Draft, Logits, Tokens, padded
from antiphon.accel.drafting.running_cost import Cost
from antiphon.accel.drafting.tree import depth_first
from antiphon.accel.drafting.verify import walk
from antiphon.accel.engines.protocol import Engine, Feed

GRACE = 1.0
"""In units of a plain step: the longest that a shared forward waits for a text whose reader has come back sooner than
that before."""

TICK = 1e-4
"""Seconds between two looks at who has come meanwhile."""

PATIENCE = 0.1
"""Seconds after which somebody who waits looks for himself, should nobody have woken him."""

SHORT = 128
"""Prompts of at most so many unread tokens are read beside what other texts verify; longer ones only beside each other,
up to the engine's ``reading``."""


@dataclass(eq=False, slots=True)
class _Ask:
    """A step that somebody wants, and what became of it."""

    text: Text
    started: float
    prefilled: int
    draft: Draft = EMPTY
    drafting: float = 0.0  # seconds
    reading: float = 0.0  # seconds for all of a prompt but its last token, where a draft hangs from that one
    length: int = 0  # of the sequence before the forward
    rows: int = 0  # of the forward, the root and rows that only fill it included; 0 for a prompt
    forwarding: float = 0.0  # seconds
    logits: Logits | None = None
    error: Exception | None = None
    is_shared: bool = False
    result: Step | Exception | None = None
    wake: Event = field(default_factory=Event)  # set when it is done, and when it is its thread's turn to serve

    @property
    def is_done(self) -> bool:
        return self.logits is not None or self.error is not None


class Loop:
    """Decodes texts on one engine; see `loop_of`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = ref(engine)  # weak: the engine owns its loop, and is freed with its model
        self._asks: dict[_Ask, None] = {}  # in the order of asking
        self._server: dict[int, _Ask] = {}  # key 0: whose thread serves; `setdefault` and `del` are atomic
        self._running: dict[Text, None] = {}
        self._worker: ThreadPoolExecutor | None = None

    @property
    def engine(self) -> Engine:
        """The engine; the loop does not keep it alive."""
        engine = self._engine()
        if engine is None:
            raise ReferenceError("The engine of this loop is gone.")
        return engine

    @property
    def running(self) -> Sequence[Text]:
        """The texts that have begun, and neither ended nor been given up."""
        return tuple(self._running)

    def steps(self, text: Text) -> Iterator[Step]:
        """One Step per forward until the text ends; closing the iterator gives the text up.

        The first step reads what the sequence does not hold yet of the prompt, and verifies a draft only where the
        drafter has one at the very beginning. The text is the chooser's alone, whatever the drafter guesses.
        """
        try:
            while not text.ending.finish:
                [step] = self.advance([text])
                if isinstance(step, Exception):
                    raise step
                yield step
        finally:
            self.leave(text)

    def advance(self, texts: Sequence[Text]) -> list[Step | Exception]:
        """One more step of each of these texts, or what its drafter, chooser, ending or forward has raised."""
        asks = [self._ask(text) for text in texts]
        try:
            self._asks.update(dict.fromkeys(asks))
            while (first := next((ask for ask in asks if not ask.is_done), None)) is not None:
                self._serve_or_wait(first)
        finally:
            for ask in asks:
                self._asks.pop(ask, None)
            self._call_next()
        return [self._result(ask) for ask in asks]

    def leave(self, text: Text) -> None:
        """Wait for this text no more."""
        self._running.pop(text, None)

    def _ask(self, text: Text) -> _Ask:
        """Draft for the next step of a text."""
        self._running[text] = None
        text.thread = get_ident()
        ask = _Ask(text, perf_counter(), prefilled=_unread(text))
        text.absence = ask.started - text.told if text.told else 0.0
        try:
            self._draft(ask)
        except Exception as error:  # noqa: BLE001 - it is raised where this text's step was asked for, and not in others'
            ask.error = error
        return ask

    def _draft(self, ask: _Ask) -> None:
        text = ask.text
        context, sequence = text.ending.tokens, text.sequence
        if text.is_begun and sequence.is_void(context):
            sequence.restart()
            ask.prefilled = len(context)
        elif text.is_begun:
            ask.draft = text.drafter.propose(context, text.budget.rows)
        else:
            opening = text.drafter.begin(tuple(context), text.references)
            text.is_begun = True
            if opening and sequence.can_open(context):
                ask.draft, started = opening, perf_counter()
                self._read(text, context[sequence.length : -1])
                ask.reading = perf_counter() - started
        if ask.draft:
            rows, room = text.budget.rows + ask.draft.probes, text.ending.room - 1
            ask.draft = sequence.fit(ask.draft, rows, room, len(context) - sequence.length)
        ask.drafting = perf_counter() - ask.started - ask.reading

    def _read(self, text: Text, tokens: Tokens) -> None:
        """Read the beginning of a prompt, so that a draft can hang from its last token.

        There is no tree over a whole prompt: its mask would be quadratic in its length.
        """
        feed = Feed(text.sequence, tokens, EMPTY, text.chunk)
        self.engine.lock.take(lambda: self.engine.forward([feed]))
        text.sequence.keep(())

    def _serve_or_wait(self, ask: _Ask) -> None:
        """Serve, where nobody does and nobody has asked before; else wait for the step or for one's turn."""
        try:
            if self.engine.lock.is_mine or (ask is self._oldest() and self._server.setdefault(0, ask) is ask):
                self._serve(ask)
            else:
                ask.wake.wait(PATIENCE)
                ask.wake.clear()
        finally:
            if self._server.get(0) is ask:
                del self._server[0]
                self._call_next()

    def _oldest(self) -> _Ask | None:
        return next((ask for ask in list(self._asks) if not ask.is_done), None)

    def _call_next(self) -> None:
        if (ask := self._oldest()) is not None:
            ask.wake.set()

    def _serve(self, own: _Ask) -> None:
        """Run one forward for an ask of this thread, and for all others that can share it."""
        lock = self.engine.lock
        is_nested = lock.is_mine  # a processor or drafter of another text asks for a text of its own
        if is_nested or len(self._running) == 1 or not lock.take(partial(self._can_share, own)):
            lock.take(partial(self._alone, own))
            return
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "antiphon-forwards")
        self._worker.submit(lock.take, partial(self._for_all, own)).result()

    def _for_all(self, own: _Ask) -> None:
        is_long = _left(own) > SHORT
        if not is_long:
            self._wait(own)
        others = [ask for ask in list(self._asks) if not ask.is_done and ask is not own and self._can_share(ask)]
        alike = [own, *(ask for ask in others if (_left(ask) > SHORT) is is_long)]
        self._together(self._read_at_once(alike), None) if is_long else self._together(alike, self.engine.shared_cost)

    def _can_share(self, ask: _Ask) -> bool:
        text = ask.text
        return _left(ask) <= max(SHORT, self.engine.reading) and not text.is_alone and text.sequence.is_shareable

    def _read_at_once(self, prompts: Sequence[_Ask]) -> list[_Ask]:
        """As many of the long prompts, the first one at least, as the engine reads in one forward."""
        ends = accumulate(_left(ask) for ask in prompts)
        return [ask for ask, end in zip(prompts, ends, strict=True) if ask is prompts[0] or end <= self.engine.reading]

    def _wait(self, ask: _Ask) -> None:
        """Let those come whose step was read a moment ago: a forward together costs less than two."""
        cost = self.engine.shared_cost
        grace = 0.0 if cost is None else GRACE * cost.seconds(ask.text.sequence.length, 1)[0]
        until = perf_counter() + grace
        while missing := self._missing(grace, ask.text.thread):
            if perf_counter() > until:
                for text in missing:
                    text.absence = inf
                return
            sleep(TICK)

    def _missing(self, grace: float, own: int) -> list[Text]:
        """The texts that do not ask yet, and whose readers have come back so soon before."""
        asking = {ask.text for ask in list(self._asks)}
        others = [text for text in list(self._running) if text.thread != own and text not in asking]
        return [text for text in others if text.absence < grace]

    def _alone(self, ask: _Ask) -> None:
        """The forward of one text."""
        text = ask.text
        text.is_alone = False
        try:
            pending = _pending(ask)
            filled = ask.draft
            if ask.rows:
                ask.draft = depth_first(text.budget.trim(ask.draft, ask.length))
                filled = _filled(ask, pending[-1], ask.text.budget.pads(ask.draft, ask.length))
                ask.rows = len(pending) + len(filled)
            begun = perf_counter()
            [logits] = self.engine.forward([Feed(text.sequence, pending, filled, text.chunk)])
            ask.forwarding = perf_counter() - begun
            ask.logits = logits if filled is ask.draft else logits.head(len(ask.draft))
        except Exception as error:  # noqa: BLE001 - as above
            ask.error = error
        except BaseException:  # Ctrl-C, in the midst of what may be another thread's forward: it reads its text again
            text.sequence.restart()
            raise
        ask.wake.set()

    def _together(self, group: Sequence[_Ask], cost: Cost | None) -> None:
        """One forward for all, or one for each where the curve of costs, if there is one, says that this is faster."""
        if len(group) == 1:
            self._alone(group[0])
            return
        pending = [_pending(ask) for ask in group]
        lengths = [ask.length for ask in group]
        drafts = share_rows([ask.draft for ask in group], [ask.text.budget for ask in group], lengths, cost)
        rows = [len(own) + len(draft) for own, draft in zip(pending, drafts, strict=True)]
        if cost is not None and not _pays(cost, rows, lengths, drafts):
            for ask in group:
                self._alone(ask)
            return
        for ask, draft in zip(group, drafts, strict=True):
            ask.draft = draft
        drafting = next((at for at, draft in enumerate(drafts) if draft), None)
        fed = list(drafts)
        if cost is not None and drafting is not None:  # without drafts the next forward has as many rows again
            pads = fillers(cost, span(cost, lengths), sum(rows))
            fed[drafting] = _filled(group[drafting], pending[drafting][-1], pads)
            rows[drafting] += len(fed[drafting]) - len(drafts[drafting])
        begun = perf_counter()
        try:
            found = self.engine.forward(
                [
                    Feed(ask.text.sequence, own, draft, ask.text.chunk)
                    for ask, own, draft in zip(group, pending, fed, strict=True)
                ]
            )
        except BaseException as error:
            for ask in group:  # nobody can say how far it came: all read their texts again, each by itself
                ask.text.sequence.restart()
                ask.text.is_alone, ask.draft = True, EMPTY
            if not isinstance(error, Exception):
                raise
            return
        seconds = perf_counter() - begun
        if cost is not None:
            cost.observe(sum(rows), _middle(cost, lengths), seconds, saved(cost, lengths, drafts))
        for ask, logits, draft in zip(group, found, fed, strict=True):
            ask.forwarding, ask.is_shared = seconds, True
            logits = logits if draft is ask.draft else logits.head(len(ask.draft))
            ask.result = self._finished(ask, logits)
            ask.logits = logits
            ask.wake.set()

    def _result(self, ask: _Ask) -> Step | Exception:
        return self._finished(ask, ask.logits) if ask.result is None else ask.result

    def _finished(self, ask: _Ask, logits: Logits | None) -> Step | Exception:
        if ask.error is None:
            try:
                return self._accept(ask, cast(Logits, logits))
            except Exception as error:  # noqa: BLE001 - as above
                ask.error = error
        self.leave(ask.text)
        return ask.error

    def _accept(self, ask: _Ask, logits: Logits) -> Step:
        """Walk the draft of a step, keep what held, and tell everybody who learns from it."""
        text, draft = ask.text, ask.draft
        started = perf_counter()
        accepted = walk(draft, text.chooser.over(logits), text.ending.commit)
        text.sequence.keep(accepted.path)
        walked = perf_counter()
        if ask.rows and not ask.is_shared:  # neither a prompt nor a text read anew
            text.budget.spent(ask.rows, ask.length, ask.forwarding + (walked - started))
        text.budget.learn(accepted)
        text.drafter.observe(draft, accepted, logits)
        text.told = ended = perf_counter()
        if text.ending.finish:
            self.leave(text)
        return Step(
            tokens=accepted.tokens,
            drafted=len(draft),
            accepted=len(accepted.path),
            seconds=ended - ask.started,
            padded=0 if ask.is_shared else max(ask.rows - 1 - len(draft), 0),
            prefilled=ask.prefilled,
            draft_seconds=ask.drafting + (ended - walked),
            forward_seconds=ask.reading + ask.forwarding,
            finish=text.ending.finish,
        )


def loop_of(engine: Engine) -> Loop:
    """The loop of this engine: there is one, so that all texts of its model can share forwards."""

    def make() -> None:
        engine.loop = engine.loop or Loop(engine)

    if engine.loop is None:
        engine.lock.take(make)
    return cast(Loop, engine.loop)


def _unread(text: Text) -> int:
    """How many tokens of the text its sequence has not read, where it has only just begun."""
    return 0 if text.sequence.is_open else len(text.ending.tokens) - text.sequence.length


def _left(ask: _Ask) -> int:
    """How many tokens of the text its sequence does not hold."""
    return len(ask.text.ending.tokens) - ask.text.sequence.length


def _pending(ask: _Ask) -> list[int]:
    """What a text feeds beside its draft, and what is to be noted of it."""
    context, sequence = ask.text.ending.tokens, ask.text.sequence
    ask.length = sequence.length
    pending = context[ask.length :]
    ask.rows = len(pending) + len(ask.draft) if sequence.is_open else 0
    ask.prefilled = ask.prefilled or _unread(ask.text)
    return pending


def _filled(ask: _Ask, token: int, pads: int) -> Draft:
    """The draft with so many rows of no meaning, where the model can take them."""
    text, draft = ask.text, ask.draft
    depth = text.ending.room - 1
    if not pads or not depth:
        return draft
    filled = text.sequence.fit(padded(draft, token, pads), sys.maxsize, depth)
    return filled if len(filled) == len(draft) + pads else draft


def _pays(cost: Cost, rows: Sequence[int], lengths: Sequence[int], drafts: Sequence[Draft]) -> bool:
    """Whether one forward of all these rows is cheaper than one for each text."""
    together = cost.seconds(_middle(cost, lengths), sum(rows))[-1] - saved(cost, lengths, drafts)
    return together <= sum(cost.seconds(length, own)[-1] for length, own in zip(lengths, rows, strict=True))


def _middle(cost: Cost, lengths: Sequence[int]) -> int:
    """As `span`, but where texts are not told apart the mean of them."""
    return span(cost, lengths) if cost.packing else sum(lengths) // len(lengths)
