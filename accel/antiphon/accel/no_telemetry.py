"""Turn off the telemetry of dependencies in this process and the processes that it starts.

`antiphon.accel` imports this module first, before any of the dependencies can be imported. Values that the user has
set in the environment are kept.
"""

from __future__ import annotations

import os
import sys
from typing import Any

OPT_OUTS = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DISABLE_SAFETENSORS_CONVERSION": "1",  # transformers would ask the hub to convert the weights of a model
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Environment variables that keep dependencies from sending data on their own."""


def opt_out() -> None:
    """Set `OPT_OUTS`, and hide the package through which OpenVINO and nncf send web analytics."""
    for name, value in OPT_OUTS.items():
        os.environ.setdefault(name, value)
    modules: dict[str, Any] = sys.modules
    modules.setdefault("openvino_telemetry", None)  # its import now fails; OpenVINO and nncf have a stub for that
