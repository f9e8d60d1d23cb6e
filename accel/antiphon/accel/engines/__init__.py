"""Engines run models. This package contains the protocol that engines implement, and one folder per engine."""
