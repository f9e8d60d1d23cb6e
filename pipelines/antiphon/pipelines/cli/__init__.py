"""The command line: parses arguments, calls the other packages, and prints their results.

Names are imported when they are first used, so that importing one command does not import the others.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
