"""The plug-in for vLLM: admission, Model Runner V1 and sampling. Only it and `model_runner_v2` import or patch vLLM."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, wraps
from inspect import signature
from pkgutil import resolve_name
from typing import Any

from antiphon.integrations.vllm.admission import ADMITTED, AdmittedSources, Tokenize, admit, begin_admission
from antiphon.integrations.vllm.batch import BatchDrafter, drafter_class
from antiphon.integrations.vllm.model_runner_v2 import register_model_runner_v2
from antiphon.integrations.vllm.patching import TESTED, has_function, missing, patch_function, vllm_version

log = logging.getLogger("vllm.antiphon")  # a child of vLLM's logger, so that vLLM formats and shows its lines

RUNNER, PROPOSE = "vllm.v1.worker.gpu_model_runner:GPUModelRunner", "propose_draft_token_ids"
PARAMETERS, VERIFY = "vllm.sampling_params:SamplingParams", "verify"
ENGINE, ADD_REQUEST = "vllm.v1.engine.async_llm:AsyncLLM", "add_request"
ERROR = "vllm.exceptions:VLLMValidationError"
RANK = "vllm.distributed.parallel_state:get_tensor_model_parallel_rank"
PLATFORM = "vllm.platforms:current_platform"
SAMPLER, EXPAND, CONSTRAIN = "vllm.v1.sample.rejection_sampler", "expand_batch_to_tokens", "apply_sampling_constraints"
REJECT, PLAIN_SAMPLER, GREEDY = "rejection_sample", "vllm.v1.sample.sampler:Sampler", "greedy_sample"


def register() -> None:
    """Patch request admission and the rejection sampler: the entry point in the group ``vllm.general_plugins``.

    vLLM calls it in the API server, the engine core and every worker. Requests to engines that use another drafter,
    or none, are admitted unchanged.
    """
    if patch_function(PARAMETERS, VERIFY, _with_admission, needs={"model_config", "speculative_config", "tokenizer"}):
        patch_function(ENGINE, ADD_REQUEST, _with_admission_in_a_thread, needs={"params"})
    else:
        log.warning("Antiphon: references are not read: %s", missing(f"{PARAMETERS}.{VERIFY}"))
    if not patch_function(SAMPLER, CONSTRAIN, _except_without_rows, needs={"logits"}):
        log.warning("Antiphon: top_k is not guarded: %s", missing(f"{SAMPLER}.{CONSTRAIN}"))
    register_model_runner_v2()


def patch_worker(vllm_config: Any) -> None:
    """Make Model Runner V1 call `BatchDrafter.prepare_step`, unless V2 runs, and log which one drafts.

    Args:
        vllm_config: vLLM's configuration.
    """
    runner = 2 if getattr(vllm_config, "use_v2_model_runner", False) else 1
    if runner == 1:
        if not patch_function(RUNNER, PROPOSE, _with_prepare_step):
            log.warning("Antiphon: nothing is drafted: %s", missing(f"{RUNNER}.{PROPOSE}"))
            return
        _fix_sampling_on_cpu()
        _speed_up_argmax_on_cpu()
    if not _is_first_rank():
        return  # vLLM uses the drafts of the first tensor-parallel rank only
    found = vllm_version()
    tested = "" if found.startswith(TESTED) else f" (tested with {' and '.join(TESTED)})"
    log.info(
        "Antiphon drafts from prompts, references and predictions, up to %d tokens a step, in Model Runner V%d of "
        "vLLM %s%s.",
        vllm_config.speculative_config.num_speculative_tokens,
        runner,
        found,
        tested,
    )


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
    if _is_cpu() and has_function(SAMPLER, EXPAND):
        setattr(resolve_name(SAMPLER), EXPAND, expand_batch_to_tokens)


def _speed_up_argmax_on_cpu() -> None:
    """On CPUs, verify greedy requests with the argmax kernel that vLLM uses for steps without drafts."""
    if _is_cpu() and has_function(PLAIN_SAMPLER, GREEDY, {"logits"}):
        patch_function(SAMPLER, REJECT, _with_greedy_argmax, needs={"target_logits", "sampling_metadata"})


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


def _is_cpu() -> bool:
    try:
        return bool(resolve_name(PLATFORM).is_cpu())
    except (ImportError, AttributeError):
        return False


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
        if parameters.extra_args and drafter_class(given["speculative_config"]):
            _admit(parameters, given["tokenizer"], given["model_config"].get_vocab_size())

    return verify_and_admit


def _with_admission_in_a_thread(add_request: Callable[..., Any]) -> Callable[..., Any]:
    """Tokenize references outside of the API server's event loop, before vLLM verifies the request inside it."""
    order = signature(add_request)

    @wraps(add_request)
    async def admit_and_add_request(engine: Any, *arguments: Any, **options: Any) -> Any:
        parameters = order.bind(engine, *arguments, **options).arguments["params"]
        config = engine.vllm_config
        if getattr(parameters, "extra_args", None) and drafter_class(config.speculative_config):
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


def _is_first_rank() -> bool:
    """Return whether this process is the first tensor-parallel rank; vLLM ignores the drafts of the others."""
    try:
        return bool(resolve_name(RANK)() == 0)
    except (ImportError, AttributeError, AssertionError):
        return True
