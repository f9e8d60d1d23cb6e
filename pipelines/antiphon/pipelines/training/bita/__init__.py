"""BiTA: how its prefix and masks are trained on a model's own answers, examined, and shipped for SmolLM2.

How they are used is `antiphon.accel.drafting.drafters.bita`'s to know.
"""
