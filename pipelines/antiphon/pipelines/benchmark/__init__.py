"""Benchmarks: what drafting saves and what it costs, in figures that a command reproduces."""
