"""Training of the encoder that says how well a line of a passage answers a question."""
