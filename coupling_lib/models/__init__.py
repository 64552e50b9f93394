"""Models by name: the registry, the sources of their weights, fetching and loading."""
