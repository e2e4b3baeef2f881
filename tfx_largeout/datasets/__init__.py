# SPDX-License-Identifier: Apache-2.0
"""Extreme classification data: reader, containers, weighting, and tensorflow-datasets builders.

Importing this module makes the builders known to `tfds.load` and `tfds.builder`.
"""

from __future__ import annotations

from tfx_largeout.datasets.extreme_classification import (
    ExtremeClassification,
    ExtremeClassificationConfig,
)
from tfx_largeout.datasets.filter_file import read_filter
from tfx_largeout.datasets.predictions import read_predictions, write_predictions
from tfx_largeout.datasets.readers import find_split as find_split
from tfx_largeout.datasets.readers import read_svmlight, read_xc, split_files
from tfx_largeout.datasets.sparse_examples import SparseExamples
from tfx_largeout.datasets.tf_idf import tf_idf
from tfx_largeout.datasets.tfds_examples import sparse_batches
from tfx_largeout.datasets.uniform_labels import uniform_labels
from tfx_largeout.datasets.wordnet_reverse_dictionary import (
    WordNetReverseDictionary,
    load_wordnet,
    wordnet_names,
)

__all__ = [
    "ExtremeClassification",
    "ExtremeClassificationConfig",
    "SparseExamples",
    "WordNetReverseDictionary",
    "load_wordnet",
    "read_filter",
    "read_predictions",
    "read_svmlight",
    "read_xc",
    "sparse_batches",
    "split_files",
    "tf_idf",
    "uniform_labels",
    "wordnet_names",
    "write_predictions",
]
