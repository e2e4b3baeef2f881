# SPDX-License-Identifier: Apache-2.0
"""What a head returned, for labels of which a loss or a metric ignores a class."""

from __future__ import annotations

from tfx_largeout.heads.base import HeadOutput

_OF_LOSS = "loss"  # see `HeadOutput.seen_by_loss`


def output_for_loss(output: HeadOutput, ignore_class: int | None) -> HeadOutput:
    """Returns the output for labels of which a loss ignores a class, or None of them.

    Metrics that look at the same output after it ignore that class, too.
    """
    seen = _view(output, ignore_class)
    if seen is output:
        output.views.pop(_OF_LOSS, None)
    else:
        output.views[_OF_LOSS] = seen
    return seen


def output_for_metric(output: HeadOutput, ignore_class: int | None) -> HeadOutput:
    """Returns the output for labels of which a metric ignores a class; None: that of the loss."""
    if ignore_class is None:
        return output.seen_by_loss
    return _view(output, ignore_class)


def _view(output: HeadOutput, ignore_class: int | None) -> HeadOutput:
    """Those that ignore the same class are one output, so that they share an exact pass."""
    if ignore_class is None:
        return output
    if ignore_class not in output.views:
        view = HeadOutput(output.head, output.hidden, output.training)
        view.ignore_class = ignore_class
        output.views[ignore_class] = view
    return output.views[ignore_class]
