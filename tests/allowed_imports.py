"""The packages of each part, lowest first, and the packages of the same part that each may import.

A package is a folder, or a single file if the rest of its folder imports it; "." is everything outside of the others.
"""

ALLOWED_IMPORTS: dict[str, dict[str, set[str]]] = {
    "accel": {
        "available_memory": set(),
        "files": set(),
        "processor": set(),
        "engines/fair_lock": set(),
        "engines/numpy_logits": set(),
        "drafting": {"files"},
        "engines/protocol": {"drafting", "engines/fair_lock"},
        "engines/torch": {"drafting", "engines/fair_lock", "engines/protocol", "files", "processor"},
        "engines/openvino": {
            "available_memory",
            "drafting",
            "engines/fair_lock",
            "engines/numpy_logits",
            "engines/protocol",
            "engines/torch",
            "files",
            "processor",
        },
        "engines/selection": {"engines/openvino", "engines/protocol", "engines/torch"},
        "decoding": {"drafting", "engines/openvino", "engines/protocol", "engines/selection", "engines/torch"},
        "text": {"decoding", "drafting", "engines/fair_lock"},
        "remote": {"decoding", "text"},
        ".": {
            "available_memory",
            "decoding",
            "drafting",
            "engines/openvino",
            "engines/protocol",
            "engines/selection",
            "engines/torch",
            "files",
            "processor",
            "remote",
            "text",
        },
        "testing": {"drafting", "engines/torch"},
    },
    "pipelines": {
        "citations": set(),
        "progress": set(),
        "data": {"progress"},
        "models": {"progress"},
        "nearest_sentences": set(),
        "rendering": {"citations", "nearest_sentences"},
        ".": {"citations", "nearest_sentences", "rendering"},
        "benchmark": {".", "models", "progress"},
        "server": {".", "citations", "rendering"},
        "mcp": {".", "citations", "rendering", "server"},
        "cli": {".", "benchmark", "data", "mcp", "models", "progress", "rendering", "server"},
    },
}
