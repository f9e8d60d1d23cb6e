"""Constrain the next token by penalties, biases and JSON schemas. Knows no drafts and no models."""
