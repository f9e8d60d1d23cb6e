"""The rooms of the house, from the ground up, and for each the rooms of its part that it may import.

A room is a folder, or a file where the rest of its folder stands on it; "." is what lies in no other: the root.
"""

ROOMS: dict[str, dict[str, set[str]]] = {
    "pipelines": {
        "citations": set(),
        "progress": set(),
        "data": {"progress"},
        "models": {"progress"},
        "nearest": set(),
        "rendering": {"citations", "nearest"},
        ".": {"citations", "nearest", "rendering"},
        "training": {".", "data", "models", "progress"},
        "benchmark": {".", "data", "models", "progress"},
        "cli": {".", "benchmark", "data", "models", "progress", "rendering", "training"},
    },
}
