"""Batch benchmark; run it as `python -m benchmarks.batch`."""
