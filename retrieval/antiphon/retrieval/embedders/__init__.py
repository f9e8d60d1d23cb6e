"""Embedders convert texts to vectors. To add one, implement `protocol.Embedder` and add its name in `by_name`."""
