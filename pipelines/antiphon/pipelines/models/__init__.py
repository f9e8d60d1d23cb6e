"""The relevance encoders' weights, suggested models, and drafters for command-line options."""
