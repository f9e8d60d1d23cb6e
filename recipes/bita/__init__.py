"""Training of BiTA's prefix and mask tokens on a model's own answers, and its evaluation."""
