"""How the bundled adapters were trained; run from a checkout. Not part of the wheel."""
