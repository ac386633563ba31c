"""Facts about the served model, and its fingerprint."""

import hashlib
import math
from collections import Counter
from dataclasses import asdict, dataclass

from dflash.decode.prefix_cache.disk.identity import identity_of
from dflash.model.loading.target import Loaded
from dflash.model.numerics import Numerics, numerics_of


def fingerprint(loaded: Loaded) -> str:
    """Return a short name of all that determines the output: weights, types, device, compiler and version of dflash."""
    return f"fp_{hashlib.sha256(identity_of(loaded).encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts(Numerics):
    """Facts about a model that endpoints return. No field holds a path.

    quantization: type of the most bytes of weights, as ``"Q4_K"``.
    parameters, n_bytes: number of weights, and their bytes in the file.
    """

    file: str
    fingerprint: str
    architecture: str
    quantization: str
    parameters: int
    n_bytes: int
    width: int
    device: str

    @classmethod
    def of(cls, loaded: Loaded) -> "ModelFacts":
        """Return the facts about a loaded model, whose file is open."""
        tensors, model, sizes = loaded.file.tensors.values(), loaded.model, Counter[str]()
        for tensor in tensors:
            sizes[tensor.type] += tensor.n_bytes
        return cls(
            file=loaded.file.path.name,
            fingerprint=fingerprint(loaded),
            architecture=model.config.architecture,
            quantization=sizes.most_common(1)[0][0],
            parameters=sum(math.prod(tensor.shape) for tensor in tensors),
            n_bytes=sizes.total(),
            width=model.config.width,
            device=model.device,
            **asdict(numerics_of(model)),
        )
