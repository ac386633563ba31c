"""Weights of one GPU of a tensor split on that GPU."""

from dflash.kernels.formats.cuda import PackedWeight
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.split.shards import ShardWeights


class ShardDeviceWeights(DeviceWeights[ShardWeights]):
    """Weights whose matrices know the rows of the whole matrix, which determine the K slices of a multiply."""

    def matrix(self, name: str) -> PackedWeight:
        """See `DeviceWeights.matrix`."""
        return self._of_whole(name, super().matrix(name))

    def halves(self, name: str) -> PackedWeight:
        """See `DeviceWeights.halves`."""
        return self._of_whole(name, super().halves(name))

    def _of_whole(self, name: str, weight: PackedWeight) -> PackedWeight:
        weight.whole_rows = weight.shape[-2] * self.host.n_parts(name)
        return weight
