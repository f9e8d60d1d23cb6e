"""The engine of torch: one for each model, with all that is known of it and the one lock of its forwards."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from transformers import Cache, PreTrainedModel

from antiphon.accel.drafting.budget import Budget, Fixed
from antiphon.accel.drafting.draft import Drafter, Logits
from antiphon.accel.drafting.drafters.runners_up import Bigrams
from antiphon.accel.drafting.experience import Experience, beginning, budget_of
from antiphon.accel.drafting.running_cost import Cost
from antiphon.accel.drafting.step_cost import StepCost
from antiphon.accel.engines.fair_lock import FairLock
from antiphon.accel.engines.protocol import CachedSequence, Feed
from antiphon.accel.engines.torch import bigrams, cost_store, determinism
from antiphon.accel.engines.torch.attention import EXACT, attending, implementation_of
from antiphon.accel.engines.torch.bita_weights import BitaWeights, found_beside
from antiphon.accel.engines.torch.compiled import CompiledSequence, CompiledSteps, try_graphs, why_not_compiled
from antiphon.accel.engines.torch.logits import TorchLogits
from antiphon.accel.engines.torch.measuring import measure
from antiphon.accel.engines.torch.prepacked import Prepacked, Prepacking
from antiphon.accel.engines.torch.ragged import Sharing, forward_together
from antiphon.accel.engines.torch.self_test import SelfTest
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.engines.torch.traits import Traits

Setting = tuple[object, ...]
"""What may change of a model while it lives."""


class TorchEngine:
    """Runs one causal model of transformers, as it is; found by `engine_of`.

    ``is_owned`` says that nobody else changes the model's weights, as where `LanguageModel.from_pretrained` has loaded
    it. Only then, or where `prepack` asks for it, linear layers are computed by prepacked copies of their weights.
    ``selected`` is what `antiphon.accel.engines.selection.select` has found of other engines for the model.
    """

    name = "torch"
    reading = 0

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = ref(model)
        self.lock = FairLock()
        self.loop: object | None = None
        self.selected: dict[str, object] = {}
        self.is_owned = False
        self.compiled_steps = CompiledSteps()
        self.prepacking = Prepacking()
        self._prepack_wanted: bool | None = None
        self._is_prepack_asked = False
        self._prepacked: Prepacked | None = None
        self._traits: dict[Setting, Traits] = {}
        self._sharing: dict[Setting, Sharing | None] = {}
        self._costs: dict[Setting, StepCost] = {}
        self._experience: dict[StepCost, Experience] = {}
        self._bigrams: Bigrams | None = None
        self._has_asked_bigrams = False
        self._proven: set[Setting] = set()
        self._bita: BitaWeights | None = None
        self._own_bita: tuple[BitaWeights | None, str] | None = None
        self._graphs: str | None = None

    @property
    def model(self) -> PreTrainedModel:
        """The model; the engine does not keep it alive."""
        model = self._model()
        if model is None:
            raise ReferenceError("The model of this engine is gone.")
        return model

    @property
    def traits(self) -> Traits:
        """What the model can verify, by attention, precision and mode; found out by a self-test once for each."""
        key = self._setting
        if key not in self._traits:
            self._traits[key] = SelfTest(self.model, self.prepacked).traits()
        return self._traits[key]

    @property
    def sharing(self) -> Sharing | None:
        """How texts of different lengths share the model's forwards, found by a self-test; None where they cannot."""
        key = self._setting
        if key not in self._sharing:
            self._sharing[key] = SelfTest(self.model, self.prepacked).sharing(self.traits)
        return self._sharing[key]

    @property
    def prepacked(self) -> Prepacked:
        """The prepacked weights, made on first use and again whenever the model has got others."""
        model = self.model
        if self._prepacked is None or not self._prepacked.is_current(model):
            if self._prepacked is not None:
                self._prepacked.remove()
                self._prepacked = None  # the copies of what is no more go before others come
            if self.is_owned or self._is_prepack_asked:
                wanted, declined = self._prepack_wanted, "it was declined"
            else:
                wanted, declined = False, "the model is borrowed; antiphon.accel.prepack(model) asks for it"
            self._prepacked = Prepacked(
                model, wanted=wanted, owned=self.is_owned, declined=declined, prepacking=self.prepacking
            )
        return self._prepacked

    def prepack(self, wanted: bool | None = None) -> Prepacked:
        """Decide whether forwards take prepacked weights; see `antiphon.accel.prepack`."""
        self._is_prepack_asked, self._prepack_wanted = True, wanted
        return self._renewed()

    def own(self) -> None:
        """Take the model's weights for ones that nobody else changes; copies are made when a forward needs them."""
        self.is_owned = True
        self.rest()

    def rest(self) -> None:
        """Give back the memory of prepacked weights until the next forward, as where another engine runs the model."""
        if self._prepacked is not None:
            self._prepacked.remove()
            self._prepacked = None

    def _renewed(self) -> Prepacked:
        self.rest()
        return self.prepacked

    def step_cost(self, *, anew: bool = False) -> StepCost:
        """What a forward costs: as it was measured here before, or measured now (under two seconds).

        It is kept as long as the model lives, and in a file for the next process. ``anew`` measures in any case.
        """
        setting = (*self._setting, torch.get_num_threads(), self._prepack_wanted, self._is_prepack_asked)
        if anew or setting not in self._costs:
            key = cost_store.describe(self.model, len(self.prepacked))
            path = cost_store.file_of(key)
            cost = None if anew else cost_store.kept(path, key, self._plain_seconds)
            if cost is None:
                cost = measure(lambda: self._plain(self.traits))
                cost_store.save(path, key, cost)
            self._costs[setting] = cost
        return self._costs[setting]

    def _plain_seconds(self, context: int) -> float:
        """Seconds of a plain step now, the second of two: the first one fills caches."""
        found = [measure(lambda: self._plain(self.traits), rows=(1,), contexts=(context,), seconds=0.0) for _ in "12"]
        return min(row[1] for row in found[-1].seconds.values())

    @property
    def experience(self) -> Experience | None:
        """What requests have taught of cost and of drafters; None where no draft can pay."""
        if self.traits.level == "plain":
            return None
        cost = self.step_cost()
        if cost not in self._experience:
            self._experience[cost] = beginning(cost)
        return self._experience[cost]

    @property
    def shared_cost(self) -> Cost | None:
        """Seconds of forwards over several texts; None where there are none."""
        experience = None if self.sharing is None else self.experience
        return None if experience is None else experience.shared_cost

    def budget(
        self, drafter: Drafter, rows: int | None, cost: StepCost | None = None, *, reproducible: bool = False
    ) -> Budget:
        """A budget for one request: of ``rows`` rows, or where that is None by what forwards of this model cost.

        With a ``cost`` nothing is measured, and nothing learned from the clock or from other requests: forwards are
        taken to cost that. A ``reproducible`` budget takes what was measured of the model for it.
        """
        if self.traits.level == "plain":
            return Fixed(rows or 0)
        if cost is None and rows is None and reproducible:
            cost = self.step_cost()
        return budget_of(drafter, rows, cost, lambda: self.experience)

    @property
    def bigrams(self) -> Bigrams | None:
        """The model's best tokens after each frequent token, asked for once; None where it cannot be asked."""
        model = self.model
        if model.training or self.traits.level != "tree":
            return None
        if not self._has_asked_bigrams:
            self._has_asked_bigrams = True
            self._bigrams = bigrams.find(model, lambda draft, root: self._plain(self.traits).forward((root,), draft))
        return self._bigrams

    def deterministic_traits(self, fixed_rows: int, cache: Cache | None = None) -> Traits:
        """The traits of forwards of exactly ``fixed_rows`` rows, each attended to by itself.

        The verdict is kept per dtype, device and number of rows.

        Raises:
            ValueError: the model, or the cache that it was given, cannot be decoded deterministically, and why.
        """
        determinism.check_cache(cache)
        model = self.model
        key = (model.dtype, str(model.device), fixed_rows)
        with attending(model, EXACT):
            if key not in self._proven or model.training:
                determinism.prove(model, fixed_rows, lambda: self.traits)
                self._proven.add(key)
            return self.traits

    def check_bita(self, bita: BitaWeights, *, fixed_rows: int = 0) -> None:
        """Refuse what BiTA learned where it cannot be shown to this model.

        Raises:
            ValueError: it is another model's, or one that verifies no trees; or decoding is deterministic.
        """
        model = self.model
        if self._bita is not bita:
            bita.check(model)
            self._bita = bita
        if self.traits.level != "tree":
            raise ValueError(f"BiTA verifies trees, which {type(model).__name__} cannot: {self.traits.reason}.")
        if fixed_rows or self.traits.implementation == EXACT:
            raise ValueError(
                "BiTA is not decoded deterministically: leave deterministic out, or choose another drafter."
            )

    @property
    def own_bita(self) -> tuple[BitaWeights | None, str]:
        """What BiTA learned for this model, from the file in its folder, looked for once; or None, and why."""
        if self._own_bita is None:
            self._own_bita = found_beside(self.model)
        return self._own_bita

    def sequence(
        self,
        cache: Cache | None = None,
        *,
        padding: int = 0,
        fixed_rows: int = 0,
        bita: BitaWeights | None = None,
        compiled: bool | None = False,
        shared: bool = True,
    ) -> TorchSequence | CompiledSequence:
        """The memory of one more text, which begins with what a ``cache`` holds.

        Unless it may be ``shared`` its forwards are its own. ``compiled`` steps are taken as
        `antiphon.accel.generate.Decoder` says.

        Raises:
            ValueError: it cannot be decoded deterministically, or with what BiTA learned.
        """
        traits = self.deterministic_traits(fixed_rows, cache) if fixed_rows else self.traits
        if bita is not None:
            self.check_bita(bita, fixed_rows=fixed_rows)
        plain = TorchSequence(
            self.model,
            traits,
            cache,
            padding=padding,
            fixed_rows=fixed_rows,
            bita=bita,
            weights=self.prepacked,
            shares=lambda: shared and self.sharing is not None,
        )
        return plain if fixed_rows else self._compiled_or_plain(plain, compiled)

    def forward(self, feeds: Sequence[Feed]) -> list[Logits]:
        """One forward over all of these texts, of which several are shareable; see `Engine`."""
        if len(feeds) > 1:
            fed: Any = [(feed.sequence, feed.pending, feed.draft) for feed in feeds]
            assert self.sharing is not None
            return [TorchLogits(rows) for rows in forward_together(fed, self.sharing)]
        return [self._alone(feeds[0])]

    def cache_of(self, sequence: CachedSequence) -> Cache:
        """What the model has read of a text, as a cache of transformers."""
        assert isinstance(sequence, TorchSequence | CompiledSequence)
        return self.lock.take(lambda: sequence.cache)

    def release(self, sequence: CachedSequence) -> None:
        """Give the memory of a text that has ended to others; what was read stays in its own cache."""
        if isinstance(sequence, CompiledSequence):
            self.lock.take(sequence.leave_memory)

    def why_not_compiled(self, cache: Cache | None = None) -> str:
        """Why steps are not compiled for this model where nothing but a device speaks for it; empty where they are."""
        cache = TorchSequence(self.model, self.traits).cache if cache is None else cache
        reason = why_not_compiled(self.model, self.traits, cache) or self.compiled_steps.failure
        if reason or self.model.device.type != "cuda":
            return reason
        if self._graphs is None:
            self._graphs = try_graphs(lambda: self._plain(self.traits), self.compiled_steps)
        return self._graphs

    def _plain(self, traits: Traits) -> TorchSequence:
        return TorchSequence(self.model, traits, weights=self.prepacked)

    def _compiled_or_plain(self, plain: TorchSequence, compiled: bool | None) -> TorchSequence | CompiledSequence:
        """The same text in compiled steps, where they are wanted and can be; a warning says why they cannot.

        None takes them on a GPU, as graphs of the model's own kernels, where these have been tried and are faster.
        """
        model, steps = self.model, self.compiled_steps
        if compiled is False or (compiled is None and model.device.type != "cuda"):
            return plain
        if compiled is None:
            has_reason = plain.bita is not None or self.why_not_compiled(plain.cache)
            return plain if has_reason else CompiledSequence(plain, steps, compiles=False)
        reason = (
            why_not_compiled(model, plain.traits, plain.cache) if plain.bita is None else "its drafter has mask tokens"
        )
        if reason is not None:
            warnings.warn(f"{type(model).__name__} is decoded without compiled steps: {reason}", stacklevel=2)
        return plain if reason or steps.failure else CompiledSequence(plain, steps, compiles=True)

    def _alone(self, feed: Feed) -> Logits:
        sequence = feed.sequence
        assert isinstance(sequence, TorchSequence | CompiledSequence)
        with torch.no_grad():
            if not sequence.is_open:
                return TorchLogits(sequence.prefill(feed.pending, feed.chunk))
            logits = sequence.forward(feed.pending, feed.draft)
        return TorchLogits(logits, sequence.best)

    @property
    def _setting(self) -> Setting:
        model = self.model
        return implementation_of(model), model.dtype, str(model.device), model.training


_engines: WeakKeyDictionary[PreTrainedModel, TorchEngine] = WeakKeyDictionary()


def engine_of(model: PreTrainedModel) -> TorchEngine:
    """The engine of this model, made on the first call: there is one, whoever asks."""
    engine = _engines.get(model)
    return _engines.setdefault(model, TorchEngine(model)) if engine is None else engine


def traits_of(model: PreTrainedModel) -> Traits:
    """What this very model can verify, and why: its declared level, lowered until the numbers agree.

    The verdict of a self-test is kept as long as the model lives, per attention implementation, dtype and mode.

    Raises:
        ValueError: the model is not a causal language model with a key-value cache.
    """
    return engine_of(model).traits


def prepack(model: PreTrainedModel, wanted: bool | None = None) -> Prepacked:
    """Decide whether this model's forwards on a CPU take prepacked weights, as much memory again as its linear layers.

    A model that was loaded by `LanguageModel.from_pretrained` takes them without being asked; any other one takes them
    once this is called. With None they are taken where half of the memory that is free has room for them. ``True``
    does not look at the memory, and ``False`` takes none. Returns what came of it.
    """
    engine = engine_of(model)
    return engine.lock.take(lambda: engine.prepack(wanted))
