"""Shapes of a draft: a chain or a tree made from the candidates of a draft model."""

from dflash.decode.drafting.shapes.chain import Chain
from dflash.decode.drafting.shapes.shape import Shape
from dflash.decode.drafting.shapes.tree import Tree

__all__ = ["Chain", "Shape", "Tree"]
