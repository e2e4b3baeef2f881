# SPDX-License-Identifier: Apache-2.0
"""WordNetReverseDictionary: the shipped reverse dictionary for tensorflow-datasets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow_datasets as tfds

from tfx_largeout.datasets import tfds_schema
from tfx_largeout.datasets.wordnet_reverse_dictionary.load_wordnet import SPLITS, load_wordnet

_DESCRIPTION = """
Find words by their definition: an example is a synset of WordNet 3.0, its features count the words
of its definition, its labels are the words that have this meaning. Splits: train; test, synsets
held out; test_partial, training synsets by half of the words of their definition; test_usage,
training synsets by example sentences from which the word is cut out.
"""

_CITATION = """
@article{miller1995wordnet,
  author = {Miller, George A.},
  title = {{WordNet}: a lexical database for {English}},
  journal = {Communications of the ACM},
  volume = {38},
  number = {11},
  pages = {39--41},
  year = {1995},
}
"""

_NUM_FEATURES = 27_463
_NUM_LABELS = {"hyper": 139_536, "lemma": 137_311}
_CONFIG_DESCRIPTIONS = {
    "hyper": "Labels are the lemmas of the synset and of its hypernyms.",
    "lemma": "Labels are the lemmas of the synset.",
}


class WordNetReverseDictionary(tfds.core.GeneratorBasedBuilder):
    """Reverse dictionary from WordNet 3.0 with 139,536 (`hyper`) or 137,311 (`lemma`) labels.

    `tfds.load("wordnet_reverse_dictionary/hyper")` works once this module is imported. Nothing is
    downloaded: the data come with the package. `load_wordnet` gives the same without a copy on
    disk.

    References:
        Miller 1995, WordNet: a lexical database for English. Data under `LICENSE.wordnet`.
    """

    name = "wordnet_reverse_dictionary"
    # tfds itself would look for it with importlib_resources, which it does not install.
    code_path = tfds.core.Path(__file__)
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First release."}  # noqa: RUF012
    BUILDER_CONFIGS = [  # noqa: RUF012
        tfds.core.BuilderConfig(name=name, description=description)
        for name, description in _CONFIG_DESCRIPTIONS.items()
    ]

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds_schema.features(),
            homepage="https://wordnet.princeton.edu",
            citation=_CITATION,
            license="WordNet 3.0 licence, see LICENSE.wordnet",
            metadata=tfds.core.MetadataDict(
                num_features=_NUM_FEATURES, num_labels=_NUM_LABELS[self.builder_config.name]
            ),
        )

    def _split_generators(
        self, dl_manager: tfds.download.DownloadManager
    ) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        del dl_manager  # nothing to download
        return {split: self._generate_examples(split) for split in SPLITS}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        (examples,) = load_wordnet(self.builder_config.name, [split])
        return tfds_schema.generate(examples)
