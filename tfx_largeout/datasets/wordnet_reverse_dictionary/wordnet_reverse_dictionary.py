# SPDX-License-Identifier: Apache-2.0
"""The WordNet reverse dictionary: shipped data, as arrays and for tensorflow-datasets."""

from __future__ import annotations

import lzma
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow_datasets as tfds

from tfx_largeout.arguments import choice_argument
from tfx_largeout.datasets import tfds_examples
from tfx_largeout.datasets.readers import read_xc
from tfx_largeout.datasets.sparse_examples import SparseExamples

DATA_FOLDER = pathlib.Path(__file__).parent
CONFIGS = ("hyper", "lemma")
SPLITS = ("train", "test", "test_partial", "test_usage")

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


def load_wordnet(
    config: str = "hyper", splits: Sequence[str] = ("train", "test")
) -> tuple[SparseExamples, ...]:
    """The WordNet reverse dictionary: find words by their definition.

    An example is a synset of WordNet 3.0. Its features are the 27,463 words of definitions, with
    their counts in the definition of the synset. Its labels are the words with this meaning;
    SOURCE.txt beside the data describes exactly how both were derived.

    Cost: about 1 s for `train`; 15 MB. Nothing is downloaded.

    Args:
        config: `"hyper"`: a synset's lemmas and its hypernyms' lemmas, 139,536 labels.
            `"lemma"`: its lemmas only, 137,311 labels.
        splits: Names among `"train"`, `"test"` (synsets held out), `"test_partial"` (training
            synsets by half of the words of their definition) and `"test_usage"` (training
            synsets by example sentences from which the word is cut out).

    Returns:
        One container for each of `splits`.

    Raises:
        ValueError: `config` or a name in `splits` is unknown.

    References:
        Miller 1995, WordNet: a lexical database for English. The data are under the licence in
        `LICENSE.wordnet`, next to them.
    """
    choice_argument("config", config, CONFIGS)
    for split in splits:
        if split not in SPLITS:
            raise ValueError(f"splits must be among {SPLITS}; got {split!r}")
    return tuple(read_xc(DATA_FOLDER / config / f"{split}.txt.xz") for split in splits)


def wordnet_names(config: str = "hyper") -> tuple[list[str], list[str]]:
    """The names of the feature ids and label ids of `load_wordnet(config)`.

    Args:
        config: `"hyper"` or `"lemma"`.

    Returns:
        The words of definitions, by feature id, and the lemmas, by label id; in lemmas of
        several words `_` replaces a space.

    Raises:
        ValueError: `config` is unknown.
    """
    choice_argument("config", config, CONFIGS)
    return _read_names(config, "features"), _read_names(config, "labels")


def _read_names(config: str, stem: str) -> list[str]:
    with lzma.open(DATA_FOLDER / config / f"{stem}.txt.xz", "rt", encoding="utf-8") as lines:
        return lines.read().splitlines()


class WordNetReverseDictionary(tfds.core.GeneratorBasedBuilder):
    """Reverse dictionary from WordNet 3.0 with 139,536 (`hyper`) or 137,311 (`lemma`) labels.

    `tfds.load("wordnet_reverse_dictionary/hyper")` works once this module is imported. Nothing is
    downloaded: the data come with the package. `load_wordnet` gives the same without a copy on
    disk.

    References:
        Miller 1995, WordNet: a lexical database for English. Data under `LICENSE.wordnet`.
    """

    name = "wordnet_reverse_dictionary"
    # tfds would search it with importlib_resources, which it does not install.
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
            features=tfds_examples.features(),
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
        return tfds_examples.generate(examples)
