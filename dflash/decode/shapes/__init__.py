"""How the candidates of a draft model become guesses: as a chain or as a tree."""

from dflash.decode.shapes.chain import Chain
from dflash.decode.shapes.shape import Shape
from dflash.decode.shapes.tree import Tree

__all__ = ["Chain", "Shape", "Tree"]
