"""Parts of models whose layers differ: sizes of each layer, attention with a window, blocks with normed outputs."""
