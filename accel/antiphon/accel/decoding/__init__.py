"""Decode prepared requests. Engines are used only through `antiphon.accel.engines.protocol`."""
