"""The torch engine: runs any causal model of transformers, unmodified."""
