"""Tiny models, test drafters, a table engine and checks of model families, for tests and for `antiphon doctor`."""
