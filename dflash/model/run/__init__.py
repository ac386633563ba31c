"""Interpreters of the programs of `dflash.model.network`."""
