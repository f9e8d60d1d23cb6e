"""A text-in, text-out model of LangChain that is an Antiphon language model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from langchain_core.caches import BaseCache
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.globals import get_llm_cache
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.llms import BaseLLM
from langchain_core.outputs import Generation, GenerationChunk, LLMResult
from langchain_core.runnables import RunnableConfig
from pydantic import ConfigDict

from antiphon.accel import Completion
from antiphon.integrations.call import Call
from antiphon.integrations.langchain.answers import CITATIONS, citations, metadata, usage
from antiphon.integrations.langchain.cache_keys import KeyedCache
from antiphon.integrations.langchain.local import LocalModel
from antiphon.integrations.langchain.references import references_of
from antiphon.integrations.opaque_references import REFERENCES, OpaqueReferences
from antiphon.integrations.reading import AsyncReading
from antiphon.pipelines import passage_references

TRACED = ("callbacks", "tags", "metadata", "run_name", "run_id")
"""What `generate` is told for traces alone."""


class AntiphonLLM(LocalModel, BaseLLM):
    """A local model that continues texts, drafted from the prompt and from ``references=[...]`` of a call.

    Several prompts of one ``generate`` or ``batch`` share their forwards, ``batch_size`` at a time. `ChatAntiphon` is
    the one for models with a chat template; the parameters of a call are the same.
    """

    model_config = ConfigDict(extra="forbid")

    batch_size: int = 8

    def stream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> Iterator[str]:
        """The text piece by piece; its references are out of every trace's sight."""
        return super().stream(input, config, stop=stop, **_hidden(kwargs))

    def astream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[str]:
        """The same from an event loop; ending the iteration ends the generation."""
        return super().astream(input, config, stop=stop, **_hidden(kwargs))

    def generate(self, prompts: list[str], stop: list[str] | None = None, *given: Any, **kwargs: Any) -> LLMResult:
        """The texts of several prompts; a cache tells calls apart by all that they were given."""
        return BaseLLM.generate(self._cached_by(kwargs), prompts, stop, *given, **kwargs)

    async def agenerate(
        self, prompts: list[str], stop: list[str] | None = None, *given: Any, **kwargs: Any
    ) -> LLMResult:
        """The same from an event loop."""
        return await BaseLLM.agenerate(self._cached_by(kwargs), prompts, stop, *given, **kwargs)

    def _cached_by(self, given: dict[str, Any]) -> AntiphonLLM:
        """The same model, whose cache goes by what this call was given; LangChain's own key is prompt and stop."""
        cache = get_llm_cache() if self.cache is None or self.cache is True else self.cache
        told = {name: value for name, value in given.items() if name not in (*TRACED, REFERENCES)}
        passages = references_of((), given.get(REFERENCES))
        if not isinstance(cache, BaseCache) or not (told or passages):
            return self
        return self.model_copy(update={"cache": KeyedCache(cache, told, passages)})

    def _generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        calls = [self._call(prompt, stop, kwargs) for prompt in prompts]
        first = calls[0]
        if len(calls) == 1 or first.timeout is not None:
            return self._result(calls, [call.read() for call in calls])
        references = [passage_references(first.passages)] * len(calls)
        completions = first.language_model.generate_batch(
            prompts, references=references, batch_size=self.batch_size, **first.parameters
        )
        return self._result(calls, completions)

    async def _agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        calls = [self._call(prompt, stop, kwargs) for prompt in prompts]
        return self._result(calls, await asyncio.gather(*map(self._aread, calls)))

    def _stream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[GenerationChunk]:
        call = self._call(prompt, stop, kwargs)
        with call.begin() as stream:
            for piece in stream:
                chunk = GenerationChunk(text=piece)
                if run_manager:
                    run_manager.on_llm_new_token(piece, chunk=chunk)
                yield chunk
        yield GenerationChunk(text="", generation_info=self._facts(call, stream.completion))

    async def _astream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[GenerationChunk]:
        call = self._call(prompt, stop, kwargs)
        async with AsyncReading(call.begin) as reading:
            async for piece in reading:
                chunk = GenerationChunk(text=piece)
                if run_manager:
                    await run_manager.on_llm_new_token(piece, chunk=chunk)
                yield chunk
        yield GenerationChunk(text="", generation_info=self._facts(call, reading.completion))

    def _call(self, prompt: str, stop: list[str] | None, given: dict[str, Any]) -> Call:
        model = given.get("model", self.model)
        parameters, timeout = self.parameters(stop, {k: v for k, v in given.items() if k not in (REFERENCES, "model")})
        return Call(self.named(model), model, prompt, references_of((), given.get(REFERENCES)), parameters, timeout)

    async def _aread(self, call: Call) -> Completion:
        async with AsyncReading(call.begin) as reading:
            async for _ in reading:
                pass
        return reading.completion

    def _result(self, calls: list[Call], completions: list[Completion]) -> LLMResult:
        generations = [
            [Generation(text=completion.text, generation_info=self._facts(call, completion))]
            for call, completion in zip(calls, completions, strict=True)
        ]
        return LLMResult(generations=generations, llm_output={"model_name": calls[0].model})

    def _facts(self, call: Call, completion: Completion) -> dict[str, Any]:
        found = citations(call, completion.text)
        facts = {**metadata(call, completion), "usage": usage(completion)}
        return {**facts, CITATIONS: found} if found else facts


def _hidden(given: dict[str, Any]) -> dict[str, Any]:
    references = given.get(REFERENCES)
    return given if references is None else {**given, REFERENCES: OpaqueReferences(references_of((), references))}
