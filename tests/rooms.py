"""The rooms of the house, from the ground up, and for each the rooms of its part that it may import.

A room is a folder, or a file where the rest of its folder stands on it; "." is what lies in no other: the root.
"""

ROOMS: dict[str, dict[str, set[str]]] = {
    "pipelines": {
        "citations": set(),
        "progress": set(),
        "data": {"progress"},
        "models": {"progress"},
        "rendering": {"citations"},
        ".": {"citations", "rendering"},
        "training": {".", "data", "models", "progress"},
        "benchmark": {".", "data", "models", "progress"},
        "server": {".", "citations", "rendering"},
        "cli": {".", "benchmark", "data", "models", "progress", "rendering", "server", "training"},
    },
}
