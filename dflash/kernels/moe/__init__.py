"""Mixture of experts: a router, the experts selected for a token, and in some models a shared expert."""

from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dflash.errors import KernelError
from dflash.kernels.arrays import empty
from dflash.kernels.linear import PackedLinear, describe, gated_linear, linear
from dflash.kernels.linear.cpu import COLUMNS, GATE, GELU_GATE, MODE, OUT, OUT_BYTES, STORE, TOKENS, UP, X_BYTES, X, multiply
from dflash.kernels.moe import cpu
from dflash.kernels.profile import timed

Floats = NDArray[np.float32]
W = TypeVar("W")

_NO_BIAS = np.empty(0, np.float32)
_FEW = 8  # tokens up to which results are combined on one thread


class SigmoidRouting(NamedTuple):
    """Routing by the sigmoid of each expert's logit, in place of a softmax.

    Parameters
    ----------
    bias : float32 (E,)
        Added to the sigmoids to select experts, but not to the shares of the selected ones.
    scale : float
        Sum of the shares of the selected experts.
    """

    bias: Floats
    scale: float


class Experts(NamedTuple, Generic[W]):
    """Weights of one layer: E experts of F hidden units, and a shared expert of Fs; D is the model width.

    Parameters
    ----------
    router : Matrix (E, D)
    gate, up : Matrix (E, F, D)
    down : Matrix (E, D, F)
    shared_router : Matrix (1, D)
    shared_gate, shared_up : Matrix (Fs, D)
    shared_down : Matrix (D, Fs)
    n_used : int
        Experts selected for a token, besides the shared one.
    routing : SigmoidRouting, optional
        By default a softmax.

    Notes
    -----
    Without a shared expert, its four weights are None; a shared expert without a router has a share of 1. On a GPU the
    matrices are of type `PackedWeight`, and the routers are float32 arrays.
    """

    router: W
    gate: W
    up: W
    down: W
    shared_router: W | None
    shared_gate: W | None
    shared_up: W | None
    shared_down: W | None
    n_used: int
    routing: SigmoidRouting | None = None

    @property
    def shared(self) -> tuple[W | None, W, W, W] | None:
        """Router, if it has one, and gate, up and down projection of the shared expert; None without one."""
        gate, up, down = self.shared_gate, self.shared_up, self.shared_down
        return None if gate is None or up is None or down is None else (self.shared_router, gate, up, down)


class MoeScratch:
    """Intermediate arrays of a layer's experts; layers of one shape share them.

    Parameters
    ----------
    tokens : int
        Capacity in tokens.
    weights : Experts
        Weights of one of the layers.
    """

    def __init__(self, tokens: int, weights: Experts) -> None:
        n_experts, ffn, width = weights.gate.shape
        n_used = weights.n_used
        shared_ffn = weights.shared[1].shape[0] if weights.shared else 0
        self.logits = np.empty((tokens, n_experts), np.float32)
        # of a shared expert without a router: its share is the sigmoid of this, 1
        self.shared_logits = np.full((tokens, 1), np.inf, np.float32)
        self.experts = np.empty((tokens, n_used), np.int32)
        self.shares = np.empty((tokens, n_used), np.float32)
        self.place = np.empty((tokens, n_used), np.int32)
        self.grouped = empty(tokens * n_used, width)
        self.hidden = empty(tokens * n_used, ffn)
        self.product = np.empty((tokens * n_used, width), np.float32)
        self.shared_hidden = empty(tokens, shared_ffn)
        self.shared = np.empty((tokens, width if weights.shared else 0), np.float32)


class Moe:
    """The experts of a layer on fixed arrays, planned once and run for any number of tokens.

    Parameters
    ----------
    x : float32 (T, D)
        Normed hidden states; T is the capacity in tokens. C-contiguous.
    weights : Experts
        Weights of any types.
    out : float32 (T, D)
        Residual stream that the result is added to; C-contiguous.
    scratch : MoeScratch, optional
        Scratch for at least T tokens; allocated if not given.
    router_x : float32 (T, D), optional
        Input of the router, if it is not `x`.
    factors : float32 (E,), optional
        Factor of each expert's share after normalisation.
    gelu : bool
        Use GELU, in its tanh form, in place of SiLU; for experts without a shared one.

    Raises
    ------
    KernelError
        If a shape does not fit.

    Notes
    -----
    ``p = softmax(router x)``; the `n_used` largest are selected (ties: the lower number) and normalised to a sum of 1;
    ``out += sum_e p_e down_e(silu(gate_e x) * up_e x) + sigmoid(shared_router x) shared(x)``, without the last term if there
    is no shared expert. With `SigmoidRouting`, ``p = sigmoid(router x)``, the largest ``p + bias`` are selected, and their
    `p` are normalised to a sum of `scale`. Each selected expert is read once for all its tokens.
    """

    def __init__(
        self,
        x: Floats,
        weights: Experts,
        out: Floats,
        scratch: MoeScratch | None = None,
        *,
        router_x: Floats | None = None,
        factors: Floats | None = None,
        gelu: bool = False,
    ) -> None:
        n_experts, ffn, width = weights.gate.shape
        if x.shape != out.shape or x.shape[1] != width or weights.down.shape != (n_experts, width, ffn):
            raise KernelError(f"{weights.gate.name}: experts {weights.gate.shape} do not fit tokens {x.shape}")
        self._x, self._weights, self._out = x, weights, out
        self._scratch = s = scratch or MoeScratch(len(x), weights)
        self._n_shared = 1 if weights.shared else 0
        routers = (weights.router, *(() if weights.shared_router is None else (weights.shared_router,)))
        self._bias, self._scale = weights.routing or SigmoidRouting(_NO_BIAS, 1.0)
        outs = (s.logits[: len(x)], s.shared_logits[: len(x)])[: len(routers)]
        self._router = PackedLinear(x if router_x is None else router_x, routers, outs, name="router")
        self._factors, self._gelu = factors, gelu
        self._native = all(w.native for w in weights[:8] if w is not None)
        if self._native:
            self._plan()

    def _plan(self) -> None:
        w, s = self._weights, self._scratch
        planned = min(w.gate.shape[0], len(s.grouped)) + self._n_shared
        self._into = np.zeros((2 * planned, COLUMNS), np.int64)
        self._down = np.zeros((planned, COLUMNS), np.int64)
        self._template = np.zeros((3, COLUMNS + 1), np.int64)
        for row, weight in zip(self._template, (w.gate, w.up, w.down), strict=True):
            describe(row[:-1], weight)
            row[-1] = weight.stack_bytes
        if w.shared is None:
            return
        _, gate, up, down = w.shared
        for row, weight, x, out, mode in (
            (self._into[0], gate, self._x, s.shared_hidden, GATE),
            (self._into[1], up, self._x, s.shared_hidden, UP),
            (self._down[0], down, s.shared_hidden, s.shared, STORE),
        ):
            describe(row, weight)
            row[MODE] = mode
            row[X], row[X_BYTES], row[OUT], row[OUT_BYTES] = x.ctypes.data, x.strides[0], out.ctypes.data, out.strides[0]

    @timed("experts")
    def __call__(self, n_tokens: int) -> None:
        """Run for the first `n_tokens` rows."""
        s = self._scratch
        self._router(n_tokens)
        shares, place = s.shares[:n_tokens], s.place[:n_tokens]
        if self._native:
            first = self._n_shared
            self._into[: 2 * first, TOKENS] = self._down[:first, TOKENS] = n_tokens
            routed = s.logits[:n_tokens], self._bias, self._scale, self._weights.n_used
            rows = *routed, s.experts[:n_tokens], shares, place, self._x, GELU_GATE if self._gelu else GATE
            plans = self._into[2 * first :], self._down[first:]
            used = first + cpu.arrange(*rows, s.grouped, self._template, *plans, s.hidden, s.product)
            multiply(self._into[: 2 * used])
            multiply(self._down[:used])
        else:
            self._one_expert_after_another(n_tokens)
        if self._factors is not None:
            shares *= self._factors[s.experts[:n_tokens]]
        combine = cpu.combine_few if n_tokens <= _FEW else cpu.combine_many
        combine(shares, place, s.product, s.shared_logits[:n_tokens], s.shared, self._out)

    def _one_expert_after_another(self, n_tokens: int) -> None:
        """Compute all experts one by one, for types without native kernels."""
        w, s, x = self._weights, self._scratch, self._x[:n_tokens]
        experts = s.experts[:n_tokens]
        cpu.route_by(s.logits[:n_tokens], self._bias, self._scale, w.n_used, experts, s.shares[:n_tokens])
        s.place[:n_tokens] = np.arange(n_tokens * w.n_used).reshape(n_tokens, w.n_used)
        if w.shared:
            _, gate, up, down = w.shared
            gated_linear(x, gate, up, s.shared_hidden[:n_tokens])
            linear(s.shared_hidden[:n_tokens], (down,), (s.shared[:n_tokens],))
        for e in np.unique(experts):
            rows = np.flatnonzero(experts.ravel() == e)
            hidden = np.empty((len(rows), w.gate.shape[1]), np.float32)
            product = np.empty((len(rows), w.gate.shape[2]), np.float32)
            gated_linear(x[rows // w.n_used], w.gate[e], w.up[e], hidden, gelu=self._gelu)
            linear(hidden, (w.down[e],), (product,))
            s.product[rows] = product
