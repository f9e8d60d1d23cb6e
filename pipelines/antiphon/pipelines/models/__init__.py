"""Language models by name: those that come with the package, adapters that are merged, what drafts for them."""
