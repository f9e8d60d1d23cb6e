"""Applies the fault that ANTIPHON_FAULT names; Python imports this file at its start if the folder is in PYTHONPATH."""

import os

if name := os.environ.get("ANTIPHON_FAULT"):
    from tests.faults.catalogue import faults
    from tests.faults.import_hook import install

    install(faults()[name])
