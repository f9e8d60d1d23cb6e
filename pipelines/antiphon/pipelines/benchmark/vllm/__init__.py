"""Drafting methods within vLLM: one engine for each, compared on the same prompts."""
