# SPDX-License-Identifier: Apache-2.0
"""DWTAHash: winner take all with one permutation cut into bins, and empty bins filled."""

from __future__ import annotations

import keras
import numpy as np

from tfx_largeout.indexes.wta_hash import WTAHash
from tfx_largeout.ops.hashing.hash_codes import HashFunctions


@keras.saving.register_keras_serializable(package="tfx_largeout")
class DWTAHash(WTAHash):
    """Densified winner take all: the place of the greatest coordinate in each bin.

    A random permutation of the coordinates is cut into floor(D / window) bins, each of which is a
    function; there are as many permutations as it takes. A vector with many zeros, such as the
    output of ReLUs, can have bins with nothing but zeros, whose winner would say nothing: such a
    bin takes the value of the nearest bin in the circle of its permutation that has one, the later
    of two. A bin that is not empty has the value that `WTAHash` would give it.

    Cost: `window` comparisons a function and vector; memory: floor(D / window) functions share D
    integers.

    Args, errors: as `WTAHash`.

    Deviations: the D mod window coordinates at the end of a permutation are in none of its bins.

    References:
        Chen, Shrivastava 2018, Densified winner take all (WTA) hashing for sparse datasets;
        Daghaghi et al. 2021, appendix A.
    """

    def functions(self, width: int, count: int, rng: np.random.Generator) -> HashFunctions:
        if self.window > width:
            raise ValueError(f"window must be at most D = {width}; got {self.window}")
        bins = width // self.window
        elements = [
            rng.permutation(width)[: bins * self.window].reshape(bins, self.window)
            for _ in range(-(-count // bins))
        ]
        return HashFunctions.by_winner(np.concatenate(elements), bins)
