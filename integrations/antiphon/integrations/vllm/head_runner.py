"""Connect `HeadProposer` with vLLM's EAGLE and MTP heads in Model Runner V1."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import copy
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any

from antiphon.integrations.vllm.batch import HEAD_METHODS, HEAD_TOKENS, combines_head, head_tokens
from antiphon.integrations.vllm.model_runner_v1 import is_first_rank, patch_sampling_on_cpu
from antiphon.integrations.vllm.patching import patch_function, vllm_version

if TYPE_CHECKING:
    from antiphon.integrations.vllm.head_proposer import HeadProposer

log = logging.getLogger("vllm.antiphon")  # a child of vLLM's logger, so that vLLM formats and shows its lines

WORKER, INIT = "vllm.v1.worker.worker_base:WorkerWrapperBase", "init_device"
PROPOSE, PREPARE = "propose_draft_token_ids", "prepare_inputs"

SKIPPABLE = "EagleProposer"
"""vLLM's drafter class that, if no draft tokens are requested, only computes the KV cache."""


def register_head() -> None:
    """If `HEAD_TOKENS` is set, patch each worker to draft both from references and with the head."""
    if head_tokens():
        patch_function(WORKER, INIT, _with_references)


def _with_references(init_device: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(init_device)
    def init_and_combine(wrapper: Any, *arguments: Any, **options: Any) -> None:
        init_device(wrapper, *arguments, **options)
        combine(wrapper.vllm_config, wrapper.worker.model_runner)

    return init_and_combine


def combine(vllm_config: Any, runner: Any) -> None:
    """Let a model runner draft from references or with the model's head.

    The choice is made for each request and step.

    Raises:
        ValueError: The configuration does not allow this combination.
    """
    from antiphon.integrations.vllm.head_proposer import HeadProposer

    speculation = vllm_config.speculative_config
    if not combines_head(speculation):
        methods = ", ".join(sorted(HEAD_METHODS))
        log.warning("Antiphon: %s has no effect, because it needs one of the methods %s.", HEAD_TOKENS, methods)
        return
    if obstacle := _obstacle(vllm_config):
        raise ValueError(f"Antiphon cannot combine references with the model's head: {obstacle}")
    if not hasattr(runner, "drafter"):
        return  # only the last pipeline stage drafts
    patch_sampling_on_cpu()
    _separate_lengths(runner.drafter)
    proposer = None
    if is_first_rank():
        proposer = HeadProposer(vllm_config, head_tokens(), patch=lambda _: None)
        log.info(
            "Antiphon combines references with the model's own head (%s): up to %d tokens a step from prompts, "
            "references and predictions, or %d from the head, in Model Runner V1 of vLLM %s.",
            speculation.method,
            speculation.num_speculative_tokens,
            head_tokens(),
            vllm_version(),
        )
    # Workers that share the head's computation must all run it equally often, so none skips it.
    parallel = vllm_config.parallel_config
    is_alone = parallel.world_size == 1 and parallel.data_parallel_size == 1
    bind(runner, proposer, can_skip=is_alone and type(runner.drafter).__name__ == SKIPPABLE)


def _obstacle(vllm_config: Any) -> str:
    """Return why the head of this server cannot be combined with references; empty if it can be."""
    speculation = vllm_config.speculative_config
    if vllm_config.use_v2_model_runner:
        return "this is possible in Model Runner V1 only; set VLLM_USE_V2_MODEL_RUNNER=0."
    if not getattr(speculation, "disable_padded_drafter_batch", False):
        return 'drafts have different lengths; add "disable_padded_drafter_batch": true to --speculative-config.'
    if getattr(speculation, "draft_sample_method", "greedy") != "greedy":
        return 'the head has to draft greedily; remove "draft_sample_method" from --speculative-config.'
    if head_tokens() > speculation.num_speculative_tokens:
        return (
            f"{HEAD_TOKENS} is {head_tokens()} and num_speculative_tokens is {speculation.num_speculative_tokens}; "
            "the head cannot draft more tokens than that."
        )
    return ""


def _separate_lengths(drafter: Any) -> None:
    """Give the head its own tensor of text lengths.

    If drafts have different lengths, vLLM 0.32 on CPUs uses one tensor both for the host's lengths
    and for the device's, so it increments the tensor twice for each token of the head. The head
    would then attend to memory after the text.
    """
    prepare_inputs = getattr(drafter, PREPARE)

    @wraps(prepare_inputs)
    def prepare(*arguments: Any, **options: Any) -> Any:
        metadata, *others = prepare_inputs(*arguments, **options)
        if metadata.seq_lens is metadata.seq_lens_cpu_upper_bound:
            metadata.seq_lens = metadata.seq_lens.clone()
        return metadata, *others

    setattr(drafter, PREPARE, prepare)


def bind(runner: Any, proposer: HeadProposer | None, *, can_skip: bool) -> None:
    """Replace the function with which a model runner makes the drafts of a step.

    Args:
        proposer: Object that chooses the draft of each request; None on a rank whose drafts vLLM ignores.
        can_skip: Whether the head may skip drafting in a step in which no request needs its tokens.
    """
    propose = getattr(runner, PROPOSE)
    order = signature(propose)

    @wraps(propose)
    def propose_draft_token_ids(*arguments: Any, **options: Any) -> list[list[int]]:
        given = order.bind(*arguments, **options)
        scheduled, sampled = given.arguments["scheduler_output"], given.arguments["sampled_token_ids"]
        is_wanted = proposer is None or proposer.begin_step(runner, scheduled.num_scheduled_tokens, sampled)
        # The head always runs, because its KV cache needs all tokens.
        given.arguments["scheduler_output"] = changed = copy(scheduled)
        num_tokens = min(head_tokens(), scheduled.num_spec_tokens_to_schedule)
        changed.num_spec_tokens_to_schedule = num_tokens if is_wanted or not can_skip else 0
        drafts: Sequence[list[int]] = propose(*given.args, **given.kwargs).tolist()
        return list(drafts) if proposer is None else proposer.end_step(drafts)

    setattr(runner, PROPOSE, propose_draft_token_ids)
