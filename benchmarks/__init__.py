"""Benchmarks that maintainers run from a checkout: `python -m benchmarks.NAME --help`. Not part of the wheel."""
