"""The printed kernels of a network are those that a pass launches."""

import numpy as np
import pytest
from golden import FILES, load, step

pytest.importorskip("cupy")


@pytest.mark.parametrize("name", FILES)
def test_a_pass_launches_the_kernels_that_are_listed(name):
    from dflash.kernels.gpu.launch import recorded
    from dflash.model.run.listing import device_listing

    model, rows = load(name, kv="f16", device="cuda"), (1, 8)
    state = model.state()
    for n in rows:
        step(model, state, np.ones(n, np.int32))
    state.close()
    if not model.launches:
        pytest.skip("passes are launched kernel by kernel")
    for i, n in enumerate(rows):
        listed = sum(
            max(len(part.layers), 1) * line.kernels[i].count(" + ") + max(len(part.layers), 1)
            for part in device_listing(model, rows)
            for line in part.lines
            if line.kernels[i] != "in its neighbours"
        )
        assert model.launches[n] == listed + len(recorded([model._decode._project], n))
