# SPDX-License-Identifier: Apache-2.0
"""Models for serving: files that TensorFlow loads without this package."""

from tfx_largeout.serving.mapped_files import load
from tfx_largeout.serving.recall import recall

__all__ = ["load", "recall"]
