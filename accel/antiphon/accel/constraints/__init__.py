"""Constrain the next token by penalties, biases and JSON schemas, for any drafter and any model."""
