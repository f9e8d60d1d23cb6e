"""The plug-in for vLLM: its entry point, and the admission of requests with references.

Only this module, `model_runner_v1` and `head_runner` import or patch vLLM.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, wraps
from inspect import signature
from pkgutil import resolve_name
from typing import Any

from antiphon.integrations.vllm.admission import ADMITTED, AdmittedSources, Tokenize, admit, begin_admission
from antiphon.integrations.vllm.batch import reads_references
from antiphon.integrations.vllm.head_runner import register_head
from antiphon.integrations.vllm.patching import patch_function, wrong_version

log = logging.getLogger("vllm.antiphon")  # a child of vLLM's logger, so that vLLM formats and shows its lines

PARAMETERS, VERIFY = "vllm.sampling_params:SamplingParams", "verify"
ENGINE, ADD_REQUEST = "vllm.v1.engine.async_llm:AsyncLLM", "add_request"
ERROR = "vllm.exceptions:VLLMValidationError"
FORCE_V2 = "VLLM_USE_V2_MODEL_RUNNER"
SAMPLER, CONSTRAIN = "vllm.v1.sample.rejection_sampler", "apply_sampling_constraints"


def register() -> None:
    """Patch request admission and the rejection sampler. This is the entry point in the group ``vllm.general_plugins``.

    vLLM calls this function in the API server, the engine core and every worker. Engines with
    another drafter, or without a drafter, admit requests unchanged.
    """
    if message := wrong_version():
        log.warning("Antiphon reads no references: %s", message)
        return
    patch_function(PARAMETERS, VERIFY, _with_admission)
    patch_function(ENGINE, ADD_REQUEST, _with_admission_in_a_thread)
    patch_function(SAMPLER, CONSTRAIN, _except_without_rows)
    if os.environ.get(FORCE_V2) == "1":
        log.warning("Antiphon drafts in Model Runner V1 only; set %s=0.", FORCE_V2)
    register_head()


def _except_without_rows(apply_sampling_constraints: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap vLLM's function for CPUs, so that logits without rows, on which it fails, are returned unchanged."""

    @wraps(apply_sampling_constraints)
    def guarded(logits: Any, *arguments: Any, **options: Any) -> Any:
        return apply_sampling_constraints(logits, *arguments, **options) if logits.shape[0] else logits

    return guarded


def _with_admission(verify: Callable[..., Any]) -> Callable[..., Any]:
    order = signature(verify)

    @wraps(verify)
    def verify_and_admit(*arguments: Any, **options: Any) -> None:
        verify(*arguments, **options)
        given = order.bind(*arguments, **options).arguments
        parameters = arguments[0]
        if parameters.extra_args and reads_references(given["speculative_config"]):
            _admit(parameters, given["tokenizer"], given["model_config"].get_vocab_size())

    return verify_and_admit


def _with_admission_in_a_thread(add_request: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``add_request``: tokenize references in a thread before vLLM checks the request in its event loop."""
    order = signature(add_request)

    @wraps(add_request)
    async def admit_and_add_request(engine: Any, *arguments: Any, **options: Any) -> Any:
        parameters = order.bind(engine, *arguments, **options).arguments["params"]
        config = engine.vllm_config
        if getattr(parameters, "extra_args", None) and reads_references(config.speculative_config):
            tokenizer, vocab_size = engine.input_processor.tokenizer, config.model_config.get_vocab_size()
            await _admit_in_a_thread(parameters, tokenizer, vocab_size)
        return await add_request(engine, *arguments, **options)

    return admit_and_add_request


def _admit(parameters: Any, tokenizer: Any, vocab_size: int) -> None:
    """Add the request's sources to its arguments as token ids, unless `_admit_in_a_thread` has done so.

    Raises:
        VLLMValidationError: The sources are invalid or exceed a limit; vLLM answers 400.
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
    """Do the same as `_admit`, but tokenize in another thread, in slices of bounded size.

    The slices of several requests take turns in that thread. So a request with a small reference waits for at most
    one slice of each other request.
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
