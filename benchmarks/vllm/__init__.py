"""Drafting methods within vLLM; run the comparison as `python -m benchmarks.vllm`."""
