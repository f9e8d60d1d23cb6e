"""The engine of torch: any causal model of transformers, as it is."""
