# SPDX-License-Identifier: Apache-2.0
"""The WordNet reverse dictionary: shipped data, a loader and a tensorflow-datasets builder."""

from tfx_largeout.datasets.wordnet_reverse_dictionary.wordnet_reverse_dictionary import (
    WordNetReverseDictionary,
    load_wordnet,
    wordnet_names,
)

__all__ = ["WordNetReverseDictionary", "load_wordnet", "wordnet_names"]
