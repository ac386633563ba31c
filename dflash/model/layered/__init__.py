"""Models whose layers differ: sizes of each layer."""
