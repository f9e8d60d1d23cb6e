"""Shares the fixtures of the pipeline tests: tiny models, and the bundled models."""

from tests.pipelines.conftest import reader, reader_folder, smollm2, smollm2_folder, tiny, tiny_folder, typist

__all__ = ["reader", "reader_folder", "smollm2", "smollm2_folder", "tiny", "tiny_folder", "typist"]
