"""Real implementations for tests and for the doctor's trial: tiny models, adversarial drafters, families."""
