"""The connection with vLLM's Model Runner V2, which has no interface for drafters of other packages."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from pkgutil import resolve_name
from sys import modules
from typing import Any

from antiphon.integrations.vllm.batch import METHOD, combines_head, drafter_class
from antiphon.integrations.vllm.patching import patch_function
from antiphon.integrations.vllm.speculator import Speculator

CONFIG, UNSUPPORTED = "vllm.config.vllm:VllmConfig", "_get_v2_model_runner_unsupported_features"
SPECULATORS, MAKE = "vllm.v1.worker.gpu.spec_decode", "init_speculator"
BASE, PROPOSE = "vllm.v1.worker.gpu.spec_decode.speculator:BaseSpeculator", "propose"
RUNNER_MODULE = "vllm.v1.worker.gpu.model_runner"
RUNNER, ADD, TAKE = f"{RUNNER_MODULE}:GPUModelRunner", "add_requests", "take_draft_token_ids"
TENSOR_PARALLEL_GROUP = "vllm.distributed.parallel_state:get_tp_group"
ENVIRONMENT, FORCED = "vllm.envs", "VLLM_USE_V2_MODEL_RUNNER"


def register_model_runner_v2() -> None:
    """Make Model Runner V2 accept our drafter if the user requires V2; otherwise it runs in V1, which was measured."""
    patch_function(SPECULATORS, MAKE, _with_our_speculator)
    if RUNNER_MODULE in modules:  # it has imported the function by name
        patch_function(RUNNER_MODULE, MAKE, _with_our_speculator)
    patch_function(CONFIG, UNSUPPORTED, _with_our_features)


def _with_our_features(unsupported_features: Callable[[Any], list[str]]) -> Callable[[Any], list[str]]:
    """Remove our method from the features that V2 does not support, and add references together with a head."""

    @wraps(unsupported_features)
    def found(config: Any) -> list[str]:
        features = unsupported_features(config)
        if combines_head(config.speculative_config):
            return [*features, "references together with the model's head"]
        if drafter_class(config.speculative_config) is None or not getattr(resolve_name(ENVIRONMENT), FORCED):
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
        ValueError: Scheduling is asynchronous.
    """
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
