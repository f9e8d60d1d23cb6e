"""Connect `Proposer` with vLLM's Model Runner V1, and fix its sampling with drafts on CPUs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from inspect import signature
from pkgutil import resolve_name
from typing import Any

from antiphon.integrations.vllm.batch import is_proposer
from antiphon.integrations.vllm.patching import patch_function, vllm_version, wrong_version

log = logging.getLogger("vllm.antiphon")  # a child of vLLM's logger, so that vLLM formats and shows its lines

RUNNER, PROPOSE = "vllm.v1.worker.gpu_model_runner:GPUModelRunner", "propose_draft_token_ids"
RANK = "vllm.distributed.parallel_state:get_tensor_model_parallel_rank"
PLATFORM = "vllm.platforms:current_platform"
SAMPLER, EXPAND = "vllm.v1.sample.rejection_sampler", "expand_batch_to_tokens"
REJECT, PLAIN_SAMPLER, GREEDY = "rejection_sample", "vllm.v1.sample.sampler:Sampler", "greedy_sample"


def patch_worker(vllm_config: Any) -> None:
    """Make Model Runner V1 call `Proposer.prepare_step`, and log that the plug-in drafts."""
    if message := wrong_version():
        log.warning("Antiphon drafts nothing: %s", message)
        return
    patch_function(RUNNER, PROPOSE, _with_prepare_step)
    patch_sampling_on_cpu()
    if not is_first_rank():
        return  # vLLM uses the drafts of the first tensor-parallel rank only
    log.info(
        "Antiphon drafts from prompts, references and predictions, up to %d tokens a step, in Model Runner V1 of "
        "vLLM %s.",
        vllm_config.speculative_config.num_speculative_tokens,
        vllm_version(),
    )


def _with_prepare_step(propose: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(propose)
    def propose_draft_token_ids(runner: Any, scheduler_output: Any, *arguments: Any, **options: Any) -> Any:
        if is_proposer(runner.drafter) and is_first_rank():
            runner.drafter.prepare_step(runner, scheduler_output.num_scheduled_tokens)
        return propose(runner, scheduler_output, *arguments, **options)

    return propose_draft_token_ids


def is_first_rank() -> bool:
    """Return whether this process is the first tensor-parallel rank; vLLM ignores the drafts of other ranks."""
    try:
        return bool(resolve_name(RANK)() == 0)
    except (ImportError, AttributeError, AssertionError):
        return True


def patch_sampling_on_cpu() -> None:
    """On CPUs, sample draft tokens at their request's temperature, and verify greedy requests with a faster kernel.

    With any drafter, vLLM's CPU kernel writes temperature, top-k and top-p into a copy that it
    discards, and samples with uninitialised memory. If a batch contains both sampled and greedy
    requests, the greedy requests are affected, too. Steps with drafts also lack the fast argmax
    kernel of steps without drafts.
    """
    if resolve_name(PLATFORM).is_cpu():
        setattr(resolve_name(SAMPLER), EXPAND, expand_batch_to_tokens)
        patch_function(SAMPLER, REJECT, _with_greedy_argmax)


def _with_greedy_argmax(rejection_sample: Callable[..., Any]) -> Callable[..., Any]:
    from torch import Tensor

    order, greedy_sample = signature(rejection_sample), getattr(resolve_name(PLAIN_SAMPLER), GREEDY)

    class GreedyLogits(Tensor):
        """Logits whose argmax over the vocabulary is computed by vLLM's kernel."""

        def argmax(self, *_: Any, **__: Any) -> Any:
            return greedy_sample(self.as_subclass(Tensor))

    @wraps(rejection_sample)
    def sample(*arguments: Any, **options: Any) -> Any:
        given = order.bind(*arguments, **options)
        logits = given.arguments["target_logits"]
        if given.arguments["sampling_metadata"].all_greedy and logits.shape[0]:
            given.arguments["target_logits"] = logits.as_subclass(GreedyLogits)
        return rejection_sample(*given.args, **given.kwargs)

    return sample


def expand_batch_to_tokens(
    x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Any:
    """Repeat entry i of ``x`` for each draft token of request i. On CPUs, this function replaces vLLM's.

    Args:
        x: Tensor of shape (requests,).
        cu_num_tokens: For each i, the number of draft tokens of requests 0 to i, shape (requests,).
        num_tokens: Number of draft tokens of all requests.
    """
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    values = x.repeat_interleave(counts, output_size=num_tokens)
    return values.masked_fill(values == replace_from, replace_to)
