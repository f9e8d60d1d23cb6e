"""The connection with vLLM's Model Runner V2, which has no interface for drafters of other packages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from inspect import signature
from pkgutil import resolve_name
from sys import modules
from typing import Any

from antiphon.integrations.vllm.batch import METHOD, combines_head, drafter_class
from antiphon.integrations.vllm.patching import has_function, missing, patch_function
from antiphon.integrations.vllm.speculator import Speculator

log = logging.getLogger("vllm.antiphon")  # a child of vLLM's logger, so that vLLM formats and shows its lines

CONFIG, UNSUPPORTED = "vllm.config.vllm:VllmConfig", "_get_v2_model_runner_unsupported_features"
SPECULATORS, MAKE = "vllm.v1.worker.gpu.spec_decode", "init_speculator"
BASE, PROPOSE = "vllm.v1.worker.gpu.spec_decode.speculator:BaseSpeculator", "propose"
RUNNER_MODULE, V1_RUNNER_MODULE = "vllm.v1.worker.gpu.model_runner", "vllm.v1.worker.gpu_model_runner"
RUNNER, ADD, TAKE = f"{RUNNER_MODULE}:GPUModelRunner", "add_requests", "take_draft_token_ids"
TENSOR_PARALLEL_GROUP = "vllm.distributed.parallel_state:get_tp_group"
ENVIRONMENT, FORCED = "vllm.envs", "VLLM_USE_V2_MODEL_RUNNER"

MAKE_PARAMETERS = frozenset({"vllm_config", "req_states"})
FUNCTIONS = (
    (RUNNER, ADD, frozenset({"scheduler_output"})),
    (RUNNER, TAKE, frozenset[str]()),
    (BASE, PROPOSE, frozenset({"input_batch", "num_sampled", "dummy_run"})),
)
FIELDS = (
    ("vllm.v1.worker.gpu.input_batch:InputBatch", ("req_ids", "idx_mapping", "num_scheduled_tokens")),
    ("vllm.v1.core.sched.output:NewRequestData", ("req_id", "prefill_token_ids", "prompt_len", "sampling_params")),
)
STATES = ("req_id_to_index", "draft_tokens", "all_token_ids.gpu", "total_len.gpu")


def register_model_runner_v2() -> None:
    """Make Model Runner V2 accept our drafter, if the user requires V2 or vLLM has no other model runner."""
    if patch_function(SPECULATORS, MAKE, _with_our_speculator, needs=MAKE_PARAMETERS):
        if RUNNER_MODULE in modules:  # it has imported the function by name
            patch_function(RUNNER_MODULE, MAKE, _with_our_speculator, needs=MAKE_PARAMETERS)
        patch_function(CONFIG, UNSUPPORTED, _with_our_features)
    elif _is_required():
        log.warning("Antiphon does not draft in Model Runner V2: %s", missing(f"{SPECULATORS}.{MAKE}"))


def _is_required() -> bool:
    """Return whether the drafter has to run in V2. Otherwise it runs in V1, where its speed was measured."""
    try:
        is_forced = getattr(resolve_name(ENVIRONMENT), FORCED, None)
        return bool(is_forced) or not (V1_RUNNER_MODULE in modules or find_spec(V1_RUNNER_MODULE))
    except (ImportError, AttributeError):
        return False


def _with_our_features(unsupported_features: Callable[[Any], list[str]]) -> Callable[[Any], list[str]]:
    """Remove our method from the features that V2 does not support, and add references together with a head."""

    @wraps(unsupported_features)
    def found(config: Any) -> list[str]:
        features = unsupported_features(config)
        if combines_head(config.speculative_config):
            return [*features, "references together with the model's head"]
        if drafter_class(config.speculative_config) is None or not _is_required():
            return features
        return [feature for feature in features if METHOD not in feature]

    return found


def _with_our_speculator(init_speculator: Callable[..., Any]) -> Callable[..., Any]:
    order = signature(init_speculator)

    @wraps(init_speculator)
    def init_any_speculator(*arguments: Any, **options: Any) -> Any:
        given = order.bind(*arguments, **options).arguments
        if drafter_class(given["vllm_config"].speculative_config) is None:
            return init_speculator(*arguments, **options)
        return make_speculator(given["vllm_config"], given["req_states"])

    return init_any_speculator


def make_speculator(vllm_config: Any, states: Any) -> Any:
    """Patch the model runner and return the speculator for it.

    Raises:
        ValueError: The drafter cannot run: an interface of vLLM is missing, or scheduling is asynchronous.
    """
    if lacking := _lacking(states):
        raise ValueError(f"Antiphon cannot draft in Model Runner V2: {missing(lacking)} Or set {FORCED}=0.")
    if vllm_config.scheduler_config.async_scheduling:
        raise ValueError(
            "Antiphon drafts on the host, from the tokens of the last step, but scheduling is asynchronous; start "
            "vLLM with --no-async-scheduling."
        )
    patch_function(RUNNER, ADD, _with_new_requests)
    patch_function(RUNNER, TAKE, _with_drafts_of_any_length)
    group, named = resolve_name(TENSOR_PARALLEL_GROUP)(), drafter_class(vllm_config.speculative_config)
    drafter = named(vllm_config) if named and group.rank_in_group == 0 else None
    return _speculator_class(resolve_name(BASE))(drafter, states, group.broadcast)


def _lacking(states: Any) -> str:
    """Return the name of the first interface that vLLM lacks; empty if it has all of them."""
    for owner, name, needs in FUNCTIONS:
        if not has_function(owner, name, needs):
            return f"{owner}.{name}({', '.join(sorted(needs))})"
    for owner, names in FIELDS:
        found = resolve_name(owner)
        for name in names:
            if name not in found.__dataclass_fields__ and not hasattr(found, name):
                return f"{owner}.{name}"
    for path in STATES:
        found = states
        for name in path.split("."):
            if not hasattr(found, name):
                return f"{type(states).__name__}.{path}"
            found = getattr(found, name)
    return ""


def _speculator_class(base: type) -> type:
    """Return a `Speculator` that derives from vLLM's base class, so that it has all of its attributes."""
    order = signature(getattr(base, PROPOSE))

    def propose(self: Speculator, *arguments: Any, **options: Any) -> Any:
        given = order.bind(self, *arguments, **options).arguments
        batch, num_sampled = given["input_batch"], given["num_sampled"]
        if given.get("dummy_run"):  # vLLM measures or compiles something, and no request is computed
            return num_sampled.new_zeros((num_sampled.shape[0], 0))
        return self.draft_step(batch, num_sampled)

    def nothing(_: Speculator, *__: Any, **___: Any) -> None:
        """Do nothing: there is no draft model whose CUDA graph could be captured."""

    members = {PROPOSE: propose, "init_cudagraph_manager": nothing, "capture": nothing}
    return type("AntiphonSpeculator", (Speculator, base), members)


def _with_new_requests(add_requests: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(add_requests)
    def add_and_keep_requests(runner: Any, scheduler_output: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(runner.speculator, Speculator):
            runner.speculator.add_requests(scheduler_output.scheduled_new_reqs)
        return add_requests(runner, scheduler_output, *arguments, **options)

    return add_and_keep_requests


def _with_drafts_of_any_length(take_draft_token_ids: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(take_draft_token_ids)
    def take_and_cut(runner: Any, *arguments: Any, **options: Any) -> Any:
        taken = take_draft_token_ids(runner, *arguments, **options)
        return runner.speculator.cut(taken) if isinstance(runner.speculator, Speculator) else taken

    return take_and_cut
