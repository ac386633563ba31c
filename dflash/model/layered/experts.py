"""Experts beside the dense feed forward of a block."""

import numpy as np

from dflash.kernels.moe import Moe, MoeScratch
from dflash.kernels.norm import rms_norm
from dflash.model.config import Config
from dflash.model.weights import Weights, experts_of
from dflash.model.workspace import RowArrays


class ExpertsBeside:
    """Experts whose normed output is added to that of the feed forward.

    Reads `stream`, adds to `hidden`. Their router has a norm of its own, and each expert a factor of its share.

    ``hidden += rms(sum_e p_e f_e expert_e(rms(stream)))`` with ``p = softmax(router (scale rms(stream) / sqrt(D)))`` of the
    selected experts, normalised to a sum of 1.
    """

    def __init__(self, weights: Weights, config: Config, space: RowArrays, scratch: list[MoeScratch]) -> None:
        a = space.all
        experts = experts_of(weights, config, router=weights.matrix)
        scratch[:] = scratch or [MoeScratch(space.n_rows, experts)]
        factors = weights.vector("ffn_down_exps.scale")
        self.moe = Moe(
            a.normed, experts, a.expert_out, scratch[0], router_x=a.router_in, factors=factors, gelu=config.blocks.gelu
        )
        self.router_norm = weights.vector("ffn_gate_inp.scale") * np.float32(config.width**-0.5)
        self.pre_ffw_norm_2 = weights.vector("pre_ffw_norm_2.weight")
        self.post_ffw_norm_2 = weights.vector("post_ffw_norm_2.weight")
        self.eps, self.space = config.norm_eps, space

    def __call__(self, n: int) -> None:
        """Run the first `n` rows of the workspace."""
        s = self.space.first(n)
        rms_norm(s.stream, self.router_norm, self.eps, out=s.router_in)
        rms_norm(s.stream, self.pre_ffw_norm_2, self.eps, out=s.normed)
        s.expert_out[:] = 0
        self.moe(n)
        rms_norm(s.expert_out, self.post_ffw_norm_2, self.eps, out=s.expert_out)
        s.hidden += s.expert_out
