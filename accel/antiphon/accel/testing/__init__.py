"""Tiny models, a byte tokenizer and adversarial drafters, for tests of drafters and for examples."""
