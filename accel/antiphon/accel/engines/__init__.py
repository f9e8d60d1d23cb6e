"""Engines run models: the protocol that all engines implement, and one folder for each engine."""
