"""Decoding speed of Antiphon and transformers on the same prompts, for users' machines."""
