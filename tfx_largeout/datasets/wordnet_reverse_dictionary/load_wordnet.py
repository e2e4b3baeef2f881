# SPDX-License-Identifier: Apache-2.0
"""load_wordnet and wordnet_names: the shipped reverse dictionary, as arrays."""

from __future__ import annotations

import lzma
import pathlib
from collections.abc import Sequence

from tfx_largeout.arguments import choice_argument
from tfx_largeout.datasets.sparse_examples import SparseExamples
from tfx_largeout.datasets.xc_format import read_xc

DATA_FOLDER = pathlib.Path(__file__).parent
CONFIGS = ("hyper", "lemma")
SPLITS = ("train", "test", "test_partial", "test_usage")


def load_wordnet(
    config: str = "hyper", splits: Sequence[str] = ("train", "test")
) -> tuple[SparseExamples, ...]:
    """The WordNet reverse dictionary: find words by their definition.

    An example is a synset of WordNet 3.0. Its features are the 27,463 words of definitions, with
    the number of times that each occurs in the definition of the synset. Its labels are the
    words that have this meaning; `docs/datasets.md` says exactly how both were made.

    Cost: about 1 s for `train`; 15 MB. Nothing is downloaded.

    Args:
        config: `"hyper"`: a synset's lemmas and those of its hypernyms, 139,536 labels.
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
    """What the feature ids and label ids of `load_wordnet(config)` stand for.

    Args:
        config: `"hyper"` or `"lemma"`.

    Returns:
        The words of definitions, by feature id, and the lemmas, by label id; in lemmas of
        several words `_` stands for a space.

    Raises:
        ValueError: `config` is unknown.
    """
    choice_argument("config", config, CONFIGS)
    return _read_names(config, "features"), _read_names(config, "labels")


def _read_names(config: str, stem: str) -> list[str]:
    with lzma.open(DATA_FOLDER / config / f"{stem}.txt.xz", "rt", encoding="utf-8") as lines:
        return lines.read().splitlines()
