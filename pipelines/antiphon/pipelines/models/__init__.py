"""Language models by name: bundled models, merged adapters, and drafters by the options of the command line."""
