# SPDX-License-Identifier: Apache-2.0
"""Creates a large data set in the extreme classification format from a text, for peers.py.

    python benchmarks/words_of_a_text.py novels.txt.xz path/to/novels
    python benchmarks/peers.py --methods omikuji,example path/to/novels

An example is a window of 16 words, one at every 30th word of the text. Its features are the counts
of its words among the 100,000 most frequent; its labels are the rare words among the middle eight:
the first 80,000 that occur less than 2,000 times. There are 300,000 examples for training and
40,000 for testing, in random order; for a short text, an eighth is for testing. So each label is
also a feature, and the model must learn which features are labels. With `--following` the labels
are the rare ones of the eight words after the window, which are hard to predict. The first line has
100,000 features and 80,000 labels, even if fewer occur.
"""

from __future__ import annotations

import argparse
import lzma
import random
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

WINDOW, STRIDE = 16, 30
LABELED = {"middle": slice(4, 12), "following": slice(16, 24)}
FEATURES, LABELS, RARE = 100_000, 80_000, 2_000
TRAIN, TEST, SEED = 300_000, 40_000, 0


def read_words(file: Path) -> list[str]:
    """Returns the words of a text, plain or compressed by xz."""
    with lzma.open(file, "rt") if file.suffix == ".xz" else file.open() as text:
        return text.read().split()


def lines_of(words: list[str], labeled: slice) -> Iterator[str]:
    """Yields examples that have a label."""
    by_frequency = Counter(words).most_common()
    features = {word: i for i, (word, _) in enumerate(by_frequency[:FEATURES])}
    rare = [word for word, count in by_frequency if count < RARE]
    labels = {word: i for i, word in enumerate(rare[:LABELS])}
    for start in range(0, len(words) - WINDOW, STRIDE):
        window = words[start : start + WINDOW]
        counts = sorted(Counter(features[word] for word in window if word in features).items())
        behind = words[start : start + labeled.stop][labeled]
        ids = sorted({labels[word] for word in behind if word in labels})
        if counts and ids:
            shown = " ".join(f"{feature}:{count}" for feature, count in counts)
            yield f"{','.join(map(str, ids))} {shown}\n"


def main() -> None:
    """Writes train.txt and test.txt."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path, help="a text, plain or compressed by xz")
    parser.add_argument("folder", type=Path, help="where train.txt and test.txt are written")
    parser.add_argument("--following", action="store_true", help="labels from after the window")
    arguments = parser.parse_args()
    labeled = LABELED["following" if arguments.following else "middle"]
    lines = list(islice(lines_of(read_words(arguments.text), labeled), TRAIN + TEST))
    random.Random(SEED).shuffle(lines)
    train = len(lines) - min(TEST, len(lines) // 8)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", lines[:train]), ("test", lines[train:])):
        with (arguments.folder / f"{name}.txt").open("w") as file:
            file.write(f"{len(part)} {FEATURES} {LABELS}\n")
            file.writelines(part)


if __name__ == "__main__":
    main()
