"""Speed benchmark for users' machines: Antiphon and transformers decode the same prompts."""
