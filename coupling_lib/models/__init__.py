"""Models by name: the registry, where their weights are, how they are fetched and loaded."""
