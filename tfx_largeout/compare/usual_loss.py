# SPDX-License-Identifier: Apache-2.0
"""head_and_loss: what a user's function returns, with the usual loss where it gives none."""

from __future__ import annotations

from typing import Any

from tfx_largeout import heads, losses
from tfx_largeout.heads.tf_candidate_sampling import TFCandidateSamplingHead

# The first one that a head is an instance of.
_LOSSES = (
    (TFCandidateSamplingHead, losses.TFCandidateSamplingLoss),
    (heads.HierarchicalSoftmaxHead, losses.NegativeLogLikelihood),
    (heads.FactoredHead, losses.ZLoss),
    (heads.SampledHead, losses.ComplementarySum),
    (heads.ExactSoftmaxHead, losses.SoftmaxCrossentropy),
    (heads.DenseHead, losses.SoftmaxCrossentropy),
)


def head_and_loss(name: str, made: Any) -> tuple[Any, Any]:
    """Returns head and loss of what a function returned.

    Args:
        name: Of the function, for errors.
        made: `(head, loss)`, or a head of this package alone.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], heads.Head):
        return made
    if not isinstance(made, heads.Head):
        raise TypeError(f"{name!r} must return (head, loss), or a head; got {made!r}")
    for kind, loss in _LOSSES:
        if isinstance(made, kind):
            return made, loss()
    raise TypeError(
        f"{name!r} must return (head, loss) where the head has no usual loss; got a "
        f"{type(made).__name__} alone"
    )
