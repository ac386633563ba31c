"""How the candidates of a draft model become guesses: as a chain or as a tree."""

from dflash.decode.drafting.shapes.chain import Chain
from dflash.decode.drafting.shapes.shape import Shape
from dflash.decode.drafting.shapes.tree import Tree

__all__ = ["Chain", "Shape", "Tree"]
