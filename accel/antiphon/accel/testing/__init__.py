"""Tiny models and a byte tokenizer, for tests of drafters and for examples."""
