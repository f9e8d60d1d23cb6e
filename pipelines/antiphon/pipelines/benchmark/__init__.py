"""Decoding speed of Antiphon, transformers and OpenVINO GenAI on the same prompts, for users' machines."""
