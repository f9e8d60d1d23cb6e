"""The rooms of the house, from the ground up, and for each the rooms of its part that it may import.

A room is a folder, or a file where the rest of its folder stands on it; "." is what lies in no other: the root.
"""

ROOMS: dict[str, dict[str, set[str]]] = {
    "accel": {
        "files": set(),
        "processor": set(),
        "engines/fair_lock": set(),
        "engines/numpy_logits": set(),
        "drafting": {"files"},
        "engines/protocol": {"drafting", "engines/fair_lock"},
        "engines/torch": {"drafting", "engines/fair_lock", "engines/protocol", "files", "processor"},
        "engines/openvino": {
            "drafting",
            "engines/fair_lock",
            "engines/numpy_logits",
            "engines/protocol",
            "engines/torch",
            "files",
        },
        "engines/selection": {"engines/openvino", "engines/protocol", "engines/torch"},
        "decoding": {"drafting", "engines/openvino", "engines/protocol", "engines/selection", "engines/torch"},
        "text": {"decoding", "drafting", "engines/fair_lock"},
        "remote": {"decoding", "text"},
        ".": {
            "decoding",
            "drafting",
            "engines/openvino",
            "engines/protocol",
            "engines/selection",
            "engines/torch",
            "remote",
            "text",
        },
        "testing": {
            ".",
            "decoding",
            "drafting",
            "engines/fair_lock",
            "engines/numpy_logits",
            "engines/protocol",
            "engines/selection",
            "engines/torch",
        },
    },
    "pipelines": {
        "citations": set(),
        "progress": set(),
        "data": {"progress"},
        "models": {"progress"},
        "nearest_sentences": set(),
        "rendering": {"citations", "nearest_sentences"},
        ".": {"citations", "nearest_sentences", "rendering"},
        "training": {".", "data", "models", "progress"},
        "benchmark": {".", "data", "models", "progress"},
        "server": {".", "citations", "rendering"},
        "cli": {".", "benchmark", "data", "models", "progress", "rendering", "server", "training"},
    },
}
