"""Who runs a model: one protocol, and one folder for each engine behind it."""
