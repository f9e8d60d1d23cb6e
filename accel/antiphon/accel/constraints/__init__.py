"""Constraints on the next token: penalties, biases, grammars of JSON schemas. Independent of drafts and models."""
