"""Rows of packed tables, bit for bit but for the sign of zeros."""

import numpy as np
import pytest
from compare import assert_same_bits
from matrices import random_matrix

from dflash.errors import KernelError
from dflash.kernels.embed import embed, reference
from dflash.kernels.formats import FORMATS


@pytest.mark.parametrize("kind", FORMATS)
def test_embeddings_are_rows_of_the_matrix(kind):
    table = random_matrix(50, 256, kind)
    ids = np.array([0, 49, 7, 7, 31], np.int32)
    out, want = np.full((6, 256), np.nan, np.float32), np.empty((5, 256), np.float32)
    embed(ids, table, out[:5])
    reference.embed(ids, table, want)
    assert_same_bits(kind, out[:5] + np.float32(0), want + np.float32(0))
    assert np.isnan(out[5]).all()


def test_refuses_an_out_of_another_width():
    with pytest.raises(KernelError, match="out must be"):
        embed(np.zeros(2, np.int32), random_matrix(4, 256), np.zeros((2, 128), np.float32))
