"""Train a DFlash draft and an MTP head for a model from its own outputs; see the README of this folder."""
