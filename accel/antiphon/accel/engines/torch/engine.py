"""The torch engine of a model: its traits, measured costs, statistics, and forward passes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, cast
from weakref import WeakKeyDictionary, ref

import torch
from transformers import Cache, PreTrainedModel

from antiphon.accel.drafting.budget import AcceptanceStats, Budget, FixedBudget, initial_stats, make_budget
from antiphon.accel.drafting.cost_model import CostModel, StepCost
from antiphon.accel.drafting.draft import Drafter, Logits, Tokens
from antiphon.accel.drafting.drafters.head import DraftHead
from antiphon.accel.drafting.drafters.recycling_table import Bigrams
from antiphon.accel.engines.fair_lock import FairLock
from antiphon.accel.engines.protocol import CachedSequence, Level, SequenceInput, SequenceOptions, ThreadSettings
from antiphon.accel.engines.torch import bigrams, cost_store, reproducibility
from antiphon.accel.engines.torch.attention import EXACT, implementation_of, use_attention
from antiphon.accel.engines.torch.batched_forward import BatchMode, batched_forward
from antiphon.accel.engines.torch.bita_weights import BitaWeights, find_bita_weights
from antiphon.accel.engines.torch.checkpoint import Checkpoint
from antiphon.accel.engines.torch.compiled_sequence import (
    CompiledSequence,
    CompiledSteps,
    check_graphs,
    cost_by_bucket,
    why_not_compiled,
)
from antiphon.accel.engines.torch.cost_measurement import CONTEXTS, measure_step_cost
from antiphon.accel.engines.torch.logits import TorchLogits
from antiphon.accel.engines.torch.self_test import SelfTest
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.engines.torch.slot_cache import BUCKETS, MIN_SLOTS
from antiphon.accel.engines.torch.thread_settings import thread_context, thread_settings
from antiphon.accel.engines.torch.traits import Traits

Setting = tuple[object, ...]
"""Properties of a model that can change: attention implementation, dtype, device, training mode."""


class TorchEngine:
    """Runs one unmodified causal model of transformers. `engine_of` returns the model's only engine.

    Args:
        model: The model; the engine does not keep it alive.

    Attributes:
        lock: Held during every forward pass.
        scheduler: The scheduler that decodes on this engine; None before the first request.
        selected: Results of `antiphon.accel.engines.selection.select_engine` for the model.
        head: The model's draft head; None if there is none.
        head_reason: Why there is no head.
        checkpoint: Files that `loading.load_pretrained` read the weights from; None if they are unknown.
    """

    name = "torch"
    prefill_batch_tokens = 0
    max_length: int | None = None

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = ref(model)
        self.lock = FairLock()
        self.scheduler: object | None = None
        self.selected: dict[str, object] = {}
        self.compiled_steps = CompiledSteps()
        self.checkpoint: Checkpoint | None = None
        self._traits: dict[Setting, Traits] = {}
        self._batch_modes: dict[Setting, BatchMode | None] = {}
        self._costs: dict[Setting, StepCost] = {}
        self._acceptance_stats: dict[StepCost, AcceptanceStats] = {}
        self._bigrams: Bigrams | None = None
        self._has_bigrams = False
        self._reproducible: set[Setting] = set()
        self._bita: BitaWeights | None = None
        self._own_bita: tuple[BitaWeights | None, str] | None = None
        self._graphs_refusal: str | None = None
        self.head: DraftHead | None = None
        self.head_reason = "none was loaded"

    @property
    def model(self) -> PreTrainedModel:
        """The model; the engine does not keep it alive."""
        model = self._model()
        if model is None:
            raise ReferenceError("The model of this engine is gone.")
        return model

    @property
    def traits(self) -> Traits:
        """Traits of the model, from a self-test that runs once per setting (see `Setting`)."""
        key = self._setting
        if key not in self._traits:
            self._traits[key] = SelfTest(self.model).traits()
        return self._traits[key]

    @property
    def batch_mode(self) -> BatchMode | None:
        """How the model can batch sequences, from a self-test that runs once per setting; None if it cannot."""
        key = self._setting
        if key not in self._batch_modes:
            self._batch_modes[key] = SelfTest(self.model).batch_mode(self.traits)
        return self._batch_modes[key]

    def step_cost(self, *, remeasure: bool = False) -> StepCost:
        """Return the measured cost of forward passes; see `ModelEngine.step_cost`.

        The measurement takes about two seconds. On a GPU it takes longer, because kernels are
        loaded and graphs are captured. The result is kept while the model exists, and stored for
        later processes.
        """
        graphs = self._uses_graphs
        setting = (*self._setting, torch.get_num_threads(), graphs)
        if remeasure or setting not in self._costs:
            key = cost_store.cost_key(self.model, graphs=graphs)
            path = cost_store.cost_file(key)
            cost = None if remeasure else cost_store.load_credible(path, key, self._plain_seconds)
            if cost is None:
                cost = self._measure()
                if graphs and not self._uses_graphs:  # capturing failed, perhaps for lack of memory
                    return self.step_cost(remeasure=remeasure)
                cost = cost_store.save(path, key, cost, combines=not remeasure)
            self._costs[setting] = cost
        return self._costs[setting]

    @property
    def _uses_graphs(self) -> bool:
        """Whether requests use CUDA graphs by default."""
        return self.model.device.type == "cuda" and not self.why_not_compiled()

    def _measure(self, **options: Any) -> StepCost:
        """Measure the steps that requests run by default: CUDA graphs if they are used, else plain torch steps."""
        if not self._uses_graphs:
            return measure_step_cost(self._new_sequence, **options)
        steps, limit = self.compiled_steps, self.traits.max_positions
        contexts = CONTEXTS if limit is None or limit > 2 * MIN_SLOTS else CONTEXTS[:1]  # each has its own slot cache
        given: dict[str, Any] = {"rows": BUCKETS, "contexts": contexts} | options
        return cost_by_bucket(
            measure_step_cost(
                self._new_sequence, steps_of=lambda plain: CompiledSequence(plain, steps, compiles=False), **given
            )
        )

    def _plain_seconds(self, context: int) -> float:
        """Run two plain steps, and return the seconds of the second; the first is slower."""
        found = [self._measure(rows=(1,), contexts=(context,), seconds=0.0) for _ in "12"]
        return min(row[1] for row in found[-1].seconds.values())

    @property
    def acceptance_stats(self) -> AcceptanceStats | None:
        """Statistics of earlier requests; None if the model cannot verify drafts."""
        if self.traits.level == "plain":
            return None
        cost = self.step_cost()
        if cost not in self._acceptance_stats:
            self._acceptance_stats[cost] = initial_stats(cost)
        return self._acceptance_stats[cost]

    @property
    def batch_cost(self) -> CostModel | None:
        """Cost of batched forward passes; None if the model cannot batch."""
        acceptance_stats = None if self.batch_mode is None else self.acceptance_stats
        return None if acceptance_stats is None else acceptance_stats.batch_cost

    def budget(self, drafter: Drafter, num_draft_tokens: int | None, cost: StepCost | None = None) -> Budget:
        """Return the budget of one request; see `ModelEngine.budget`."""
        if self.traits.level == "plain":
            return FixedBudget(num_draft_tokens or 0)
        return make_budget(drafter, num_draft_tokens, cost, lambda: self.acceptance_stats)

    @property
    def bigrams(self) -> Bigrams | None:
        """The model's bigrams; None in training mode, or if the level is not "tree"."""
        model = self.model
        if model.training or self.traits.level != "tree":
            return None
        if not self._has_bigrams:
            self._has_bigrams = True
            self._bigrams = bigrams.load_or_compute_bigrams(
                model, lambda draft, root: self._new_sequence().forward((root,), draft)
            )
        return self._bigrams

    def reproducible_traits(self, cache: Cache | None = None) -> Traits:
        """Return the traits under exact attention, after checking that decoding is reproducible.

        The check runs once per dtype and device.

        Raises:
            ValueError: The model or this cache does not support reproducible decoding; the message has the reason.
        """
        reproducibility.check_cache(cache)
        model = self.model
        key = (model.dtype, str(model.device))
        with use_attention(model, EXACT):
            if key not in self._reproducible or model.training:
                reproducibility.check_model(model, lambda: self.traits)
                self._reproducible.add(key)
            return self.traits

    def check_bita(self, bita: BitaWeights, *, reproducible: bool = False) -> None:
        """Raise an error if BiTA weights cannot be used with this model.

        Raises:
            ValueError: The weights belong to another model, the model cannot verify trees or keeps
                a recurrent state, or decoding is reproducible.
        """
        model = self.model
        if self._bita is not bita:
            bita.check(model)
            self._bita = bita
        if self.traits.level != "tree":
            raise ValueError(f"BiTA verifies trees, which {type(model).__name__} cannot: {self.traits.reason}.")
        if self.traits.state_kinds:
            raise ValueError(
                f"BiTA's prefix has keys and values for every layer; {type(model).__name__} keeps a state."
            )
        if reproducible or self.traits.implementation == EXACT:
            raise ValueError("BiTA is not decoded reproducibly: leave reproducible out, or choose another drafter.")

    def sequence(
        self,
        cache: Cache | None = None,
        *,
        padding: int = 0,
        reproducible: bool = False,
        bita: BitaWeights | None = None,
        compiled: bool | None = False,
        hidden_states: tuple[int, ...] = (),
    ) -> TorchSequence | CompiledSequence:
        """Return a new sequence; see `SequenceOptions` for the arguments.

        Args:
            cache: Cache to continue from; None for a new one.
            reproducible: Decode reproducibly; see `DecodingOptions`.
            bita: Weights for a drafter's mask tokens.
            compiled: Whether to use compiled steps; see `DecodingOptions`.
            hidden_states: Indices of the hidden states that a draft head reads.

        Raises:
            ValueError: The model does not support reproducible decoding, or these BiTA weights.
        """
        traits = self.reproducible_traits(cache) if reproducible else self.traits
        if bita is not None:
            self.check_bita(bita, reproducible=reproducible)
        plain = TorchSequence(
            self.model,
            traits,
            cache,
            padding=padding,
            reproducible=reproducible,
            bita=bita,
            hidden_states=hidden_states,
            shares=lambda: self.batch_mode is not None,
        )
        return plain if reproducible else self._compiled_or_plain(plain, compiled)

    @property
    def level(self) -> Level:
        """The verification level of this model."""
        return self.traits.level

    def new_sequence(self, tokens: Tokens, options: SequenceOptions) -> TorchSequence | CompiledSequence:
        """Return the sequence of a new request; see `ModelEngine.new_sequence`."""
        return self.sequence(
            options.cache,
            padding=options.padding,
            reproducible=options.reproducible,
            bita=cast("BitaWeights | None", options.bita),
            compiled=options.compiled,
            hidden_states=options.hidden_states,
        )

    def usable_bita(self, *, reproducible: bool = False) -> tuple[BitaWeights | None, str]:
        """Return BiTA's masks from the model's folder, or None and the reason why they are not used."""
        if self.traits.level == "plain":
            return None, f"drafts do not help this model: {self.traits.reason}"
        if self._own_bita is None:
            self._own_bita = find_bita_weights(self.model)
        weights, reason = self._own_bita
        if weights is None:
            return None, reason
        try:
            self.check_bita(weights, reproducible=reproducible)
        except ValueError as error:
            return None, str(error).rstrip(".")
        if self._uses_graphs:
            return None, "its steps are compiled on this GPU, which BiTA's masks forfeit"
        return weights, ""

    def thread_settings(self) -> ThreadSettings:
        """Return the settings of the calling thread; see `Engine.thread_settings`."""
        return thread_settings(self.model.device)

    def thread_context(self, settings: ThreadSettings) -> AbstractContextManager[None]:
        """Return a context with these settings; see `Engine.thread_context`."""
        return thread_context(self.model.device, settings)

    def forward(self, inputs: Sequence[SequenceInput]) -> list[Logits]:
        """Run one forward pass over all sequences; see `Engine.forward`."""
        if len(inputs) > 1:
            fed: Any = [(each.sequence, each.pending, each.draft) for each in inputs]
            assert self.batch_mode is not None
            return [TorchLogits(rows) for rows in batched_forward(fed, self.batch_mode)]
        return [self._forward_alone(inputs[0])]

    def missing_for_head(self, head: DraftHead) -> str:
        """See `ModelEngine.missing_for_head`."""
        return ""

    def cache_of(self, sequence: CachedSequence) -> Cache:
        """Return the cached tokens of a sequence as a transformers cache."""
        assert isinstance(sequence, TorchSequence | CompiledSequence)
        return self.lock.run(lambda: sequence.cache)

    def release(self, sequence: CachedSequence) -> None:
        """Free the slot cache of a finished sequence; the tokens move to the plain cache."""
        if isinstance(sequence, CompiledSequence):
            self.lock.run(sequence.leave_slot_cache)

    def why_not_compiled(self, cache: Cache | None = None) -> str:
        """Return why steps cannot be compiled, or why a GPU uses no CUDA graphs; empty if there is no reason."""
        cache = TorchSequence(self.model, self.traits).cache if cache is None else cache
        reason = why_not_compiled(self.model, self.traits, cache) or self.compiled_steps.failure
        if reason or self.model.device.type != "cuda":
            return reason
        if self._graphs_refusal is None:
            self._graphs_refusal = check_graphs(self._new_sequence, self.compiled_steps)
        return self._graphs_refusal

    def _new_sequence(self) -> TorchSequence:
        return TorchSequence(self.model, self.traits)

    def _compiled_or_plain(self, plain: TorchSequence, compiled: bool | None) -> TorchSequence | CompiledSequence:
        """Return the sequence, with compiled steps if possible.

        Warns if compiled steps were requested but are not possible.

        Args:
            compiled: None: on a GPU, capture the model's own kernels as CUDA graphs if that is
                faster. True: compile with torch. False: return the plain sequence.
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
        if plain.hidden_states.layers:
            reason = "its draft head reads hidden states"
        if reason is not None:
            warnings.warn(f"{type(model).__name__} is decoded without compiled steps: {reason}", stacklevel=2)
        return plain if reason or steps.failure else CompiledSequence(plain, steps, compiles=True)

    def _forward_alone(self, single: SequenceInput) -> Logits:
        sequence = single.sequence
        assert isinstance(sequence, TorchSequence | CompiledSequence)
        with torch.no_grad():
            if not sequence.is_prefilled and not single.draft:
                return TorchLogits(sequence.prefill(single.pending, single.prefill_chunk))
            if not sequence.is_prefilled:  # the cache holds the prompt except its last token
                sequence.inspect_cache()
            logits = sequence.forward(single.pending, single.draft)
        return TorchLogits(logits, sequence.argmax)

    @property
    def _setting(self) -> Setting:
        model = self.model
        return implementation_of(model), model.dtype, str(model.device), model.training


_engines: WeakKeyDictionary[PreTrainedModel, TorchEngine] = WeakKeyDictionary()


def engine_of(model: PreTrainedModel) -> TorchEngine:
    """Return the engine of a model, created by the first call."""
    engine = _engines.get(model)
    return _engines.setdefault(model, TorchEngine(model)) if engine is None else engine


def traits_of(model: PreTrainedModel) -> Traits:
    """Return the traits of a model, from a self-test that runs once per attention implementation, dtype and mode.

    Raises:
        ValueError: The model is not a causal language model with a KV cache.
    """
    return engine_of(model).traits
