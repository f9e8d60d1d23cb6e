"""Language models by name: bundled models, merged adapters, GGUF files, and names on the hub."""
