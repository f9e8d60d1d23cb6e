"""Training: a resumable training loop, and BiTA's mask tokens."""
