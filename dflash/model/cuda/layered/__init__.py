"""Layers on a GPU of models whose layers differ, as in `dflash.model.layered`."""
