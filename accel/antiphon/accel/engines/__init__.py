"""Engines run models. Here are the protocol that they implement, and one folder for each engine."""
