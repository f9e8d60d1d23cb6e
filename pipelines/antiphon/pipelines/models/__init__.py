"""Language models by name: bundled models and merged adapters; also drafters from command-line options."""
