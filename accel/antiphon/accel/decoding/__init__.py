"""Decoding: from a prepared request to its last step. Uses engines through `antiphon.accel.engines.protocol` only."""
