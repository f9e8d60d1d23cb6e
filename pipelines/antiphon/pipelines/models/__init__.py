"""Drafters by command-line options, suggested models, and the weights of the relevance encoders."""
