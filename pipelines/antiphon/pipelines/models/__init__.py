"""Weights of the relevance encoders, suggestions of language models, and drafters made from command-line options."""
