"""Result of the draft doctor: a table, a sentence, a record."""

from dataclasses import asdict, dataclass

from dflash.cli.terminal import table
from dflash.evaluation.environment import Environment
from dflash.evaluation.tables import Values


@dataclass(frozen=True)
class LayerFinding:
    """A layer that the draft reads.

    layer: index; the number of layers stands for the output of the last norm.
    cosine: mean over tokens of the cosine between target and reference.
    norm_ratio: mean over tokens of the target's norm over the reference's.
    tokens_per_step: with the reference's features in this layer alone.
    """

    layer: int
    cosine: float
    norm_ratio: float
    tokens_per_step: float
    change: float


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """Layers by what they cost a draft. `print` writes a table.

    layers: the layer whose swap changes tokens per step most comes first.
    tokens_per_step, all_swapped: with the target's own features, and with the reference's in all layers.
    texts, tokens: texts, and their tokens that target and reference share.
    draft, model, reference: the strategy, and descriptions of target and reference.
    """

    layers: list[LayerFinding]
    tokens_per_step: float
    all_swapped: float
    texts: int
    tokens: int
    draft: str
    model: str
    reference: str
    environment: Environment

    @property
    def verdict(self) -> str:
        """One sentence about the first layer."""
        first = self.layers[0]
        if first.change == 0:
            return f"no layer's features change what is accepted; layer {first.layer} has the lowest cosine"
        word = "costs most" if first.change > 0 else "changes most, to the target's advantage"
        swapped, own = first.tokens_per_step, self.tokens_per_step
        return f"layer {first.layer} {word}: {swapped:.2f} tokens per step with the reference's, {own:.2f} with its own"

    def as_dict(self) -> Values:
        """JSON values only."""
        return {**asdict(self), "environment": dict(self.environment), "verdict": self.verdict}

    def __repr__(self) -> str:
        head = ["layer", "cosine", "norm ratio", "tokens per step, swapped", "change"]
        lines = [
            [
                str(one.layer),
                f"{one.cosine:.5f}",
                f"{one.norm_ratio:.4f}",
                f"{one.tokens_per_step:.2f}",
                f"{one.change:+.2f}",
            ]
            for one in self.layers
        ]
        change = self.all_swapped - self.tokens_per_step
        lines.append(["all", "", "", f"{self.all_swapped:.2f}", f"{change:+.2f}"])
        about = f"{self.draft}: {self.tokens_per_step:.2f} tokens per step on {self.texts} texts, {self.tokens} tokens"
        return "\n\n".join([about, table([head, *lines], right=range(len(head))), self.verdict])
