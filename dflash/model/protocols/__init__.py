"""Protocols between the layers: models, the state of a sequence in a model, and drafters on a device."""
