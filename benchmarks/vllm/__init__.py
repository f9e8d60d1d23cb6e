"""Drafting methods within vLLM, one engine for each, on the same prompts; run it as `python -m benchmarks.vllm`."""
