"""The packages of each part, lowest first, and the packages of the same part that each may import.

A package is a folder, or a single file if the rest of its folder imports it; "." is everything outside of the others.
"""

ALLOWED_IMPORTS: dict[str, dict[str, set[str]]] = {
    "accel": {
        "available_memory": set(),
        "files": set(),
        "processor": set(),
        "engines/fair_lock": set(),
        "drafting": {"files"},
        "engines/protocol": {"drafting", "engines/fair_lock"},
        "engines/torch": {"drafting", "engines/fair_lock", "engines/protocol", "files", "processor"},
        "engines/openvino": {
            "available_memory",
            "drafting",
            "engines/fair_lock",
            "engines/protocol",
            "engines/torch",
            "files",
            "processor",
        },
        "engines/selection": {"engines/openvino", "engines/protocol", "engines/torch"},
        "constraints": set(),
        "decoding": {"drafting", "engines/openvino", "engines/protocol", "engines/selection", "engines/torch"},
        "text": {"constraints", "decoding", "drafting", "engines/fair_lock"},
        "remote": {"constraints", "decoding", "text"},
        ".": {
            "available_memory",
            "constraints",
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
        "testing": {"text"},
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
