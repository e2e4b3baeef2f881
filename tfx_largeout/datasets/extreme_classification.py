# SPDX-License-Identifier: Apache-2.0
"""ExtremeClassification: the sets of the extreme classification repository, downloaded by hand."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import tensorflow_datasets as tfds

from tfx_largeout.datasets import tfds_examples
from tfx_largeout.datasets.readers import read_xc, split_files
from tfx_largeout.datasets.sparse_examples import SparseExamples
from tfx_largeout.datasets.uniform_labels import uniform_labels

_DESCRIPTION = """
Extreme multi-label classification: sparse bag-of-words features and any number of labels an
example, among thousands to millions of labels.
"""

_CITATION = """
@misc{bhatia2016extreme,
  author = {Bhatia, K. and Dahiya, K. and Jain, H. and Mittal, A. and Prabhu, Y. and Varma, M.},
  title = {The extreme classification repository: multi-label datasets and code},
  url = {http://manikvarma.org/downloads/XC/XMLRepository.html},
  year = {2016},
}
"""


@dataclasses.dataclass
class ExtremeClassificationConfig(tfds.core.BuilderConfig):
    """A data set in the repository's format.

    Args:
        name: Name of the config.
        folder: Folder under `manual_dir` that holds the files. Default: `name`.
        num_features: Number of features that the files must have. Default: any.
        num_labels: Number of labels that the files must have. Default: any.
        uniform: Number of labels that `uniform_labels` keeps. Default: all labels. Data prepared
            under `name` with another number raise an error.
    """

    folder: str = ""
    num_features: int | None = None
    num_labels: int | None = None
    uniform: int | None = None

    def __post_init__(self) -> None:
        self.folder = self.folder or self.name

    @property
    def prepared_sizes(self) -> dict[str, int | None]:
        """The metadata of the prepared data; None if the files determine them."""
        return {
            "num_features": self.num_features,
            "num_labels": self.uniform or self.num_labels,
            "uniform": self.uniform or 0,
        }


class ExtremeClassification(tfds.core.GeneratorBasedBuilder):
    """The sets of the extreme classification repository, and others in its format.

    `tfds.load("extreme_classification/amazon_670k")` works once this module is imported and the
    files are where `MANUAL_DOWNLOAD_INSTRUCTIONS` says. The config `amazon_uniform` is derived
    from the files of Amazon-670K by `uniform_labels`. A set that has no config here:
    `ExtremeClassification(config=ExtremeClassificationConfig(name="my_set"))`.

    Cost: the arrays of a split are in memory while it is prepared.

    Raises:
        FileNotFoundError: A split has no file.
        ValueError: A split has several files; a file is malformed; or a file, or earlier prepared
            data, have other numbers of features or labels than the config.

    References:
        Bhatia, Dahiya, Jain, Mittal, Prabhu, Varma 2016, The extreme classification repository.
        Daghaghi et al. 2021, section 3.5 and table 1 (`amazon_uniform`, sizes of `odp_105k`).
    """

    name = "extreme_classification"
    # tfds would search it with importlib_resources, which it does not install.
    code_path = tfds.core.Path(__file__)
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First release."}  # noqa: RUF012
    MANUAL_DOWNLOAD_INSTRUCTIONS = """
    Download the set from http://manikvarma.org/downloads/XC/XMLRepository.html (the archive of
    bag-of-words features) and unpack it. Put its two data files into a folder named like the
    config under manual_dir, for instance

      amazon_670k/train.txt
      amazon_670k/test.txt

    Older archives call the files amazon_train.txt and amazon_test.txt; any name that ends in
    _train.txt or _test.txt will do. Archives that keep features and labels in two files have
    trn_X_Xf.txt, trn_X_Y.txt, tst_X_Xf.txt and tst_X_Y.txt. You may compress each file with gzip
    (.gz), xz (.xz) or bzip2 (.bz2). `read_xc` has the format. amazon_uniform uses the files of
    amazon_670k. ODP-105K is not in the repository: write it in this format yourself.
    """
    BUILDER_CONFIGS = [
        ExtremeClassificationConfig(name, num_features=num_features, num_labels=num_labels)
        for name, num_features, num_labels in [
            ("rcv1_2k", 47_236, 2_456),
            ("eurlex_4k", None, None),  # several versions are in circulation
            ("amazoncat_13k", 203_882, 13_330),
            ("wiki10_31k", 101_938, 30_938),
            ("odp_105k", 422_713, 105_033),
            ("delicious_200k", None, None),
            ("wikilshtc_325k", 1_617_899, 325_056),
            ("wikipedia_500k", 2_381_304, 501_070),
            ("amazon_670k", 135_909, 670_091),
            ("amazon_3m", 337_067, 2_812_281),
        ]
    ] + [
        ExtremeClassificationConfig(
            "amazon_uniform",
            folder="amazon_670k",
            num_features=135_909,
            num_labels=670_091,
            uniform=158_114,
        )
    ]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Data prepared under the name of the config may be different.
        config, found = self.builder_config, self.info.metadata or {}
        for what, number in config.prepared_sizes.items():
            if number is not None and found.get(what) not in (None, number):
                raise ValueError(
                    f"{what} of {config.name} must be {found[what]}, as it was prepared; got "
                    f"{number}. Give the config another name, and folder={config.folder!r}"
                )

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds_examples.features(),
            homepage="http://manikvarma.org/downloads/XC/XMLRepository.html",
            citation=_CITATION,
            metadata=tfds.core.MetadataDict(self.builder_config.prepared_sizes),
        )

    def _split_generators(
        self, dl_manager: tfds.download.DownloadManager
    ) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        config = self.builder_config
        folder = pathlib.Path(dl_manager.manual_dir) / config.folder
        train, test = (_read_split(folder, split, config) for split in ("train", "test"))
        if config.uniform:
            train, test = uniform_labels(train, test, num_labels=config.uniform)
        self.info.metadata.update(num_features=train.num_features, num_labels=train.num_labels)
        return {"train": self._generate_examples(train), "test": self._generate_examples(test)}

    def _generate_examples(self, examples: SparseExamples) -> Iterator[tuple[int, dict[str, Any]]]:
        return tfds_examples.generate(examples)


def _read_split(
    folder: pathlib.Path, split: str, config: ExtremeClassificationConfig
) -> SparseExamples:
    path, *labels = split_files(folder, split)
    examples = read_xc(path, *labels, progress=True)
    for what in ("num_features", "num_labels"):
        expected, found = getattr(config, what), getattr(examples, what)
        if expected is not None and found != expected:
            raise ValueError(f"{path}:1: {what} of {config.name} must be {expected}; got {found}")
    return examples
