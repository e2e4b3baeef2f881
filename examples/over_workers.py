# SPDX-License-Identifier: Apache-2.0
"""WordNet definitions to words, with the 139,536 classes spread over several workers.

    tfx-largeout launch --workers 2 examples/over_workers.py            # on this machine
    python examples/over_workers.py                                     # the same in one process
    srun --ntasks 4 python examples/over_workers.py --slurm             # see slurm.sbatch
    kubectl apply -f examples/kubernetes.yaml                           # pods of an indexed Job
    python examples/ray_train.py                                        # as workers of Ray Train

All workers run it; they share the classes and the examples of each batch. The result is one file
that any process with `import tfx_largeout` loads by `keras.saving.load_model`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import keras

import tfx_largeout as tlo
from tfx_largeout.datasets import load_wordnet, tf_idf


def train(epochs: int, steps: int | None, folder: Path) -> None:
    """Trains, evaluates and saves; every worker does the same."""
    keras.utils.set_random_seed(0)
    train, test = tf_idf(*load_wordnet("hyper"))
    head = tlo.heads.SampledHead(
        train.num_labels,
        tlo.samplers.LogUniform(1000),
        tlo.optimizers.RowAdam(0.005),
        seed=1,
        kernel_initializer=keras.initializers.GlorotUniform(seed=2),
    )
    trunk = tlo.layers.SparseDense(128, activation="relu")
    model = keras.Sequential([keras.Input([train.num_features], sparse=True), trunk, head])
    model.compile(
        tlo.distribute.DataParallel(tlo.optimizers.FusedAdam(2e-3)),
        tlo.losses.ComplementarySum(),
        metrics=[tlo.metrics.PrecisionAtK(1)],
    )
    checkpoint = tlo.callbacks.Checkpoint(folder / "over_workers")
    data = checkpoint.data(
        lambda epoch: train.dataset(512, shuffle=True, seed=epoch).take(steps or -1)
    )
    first = tlo.distribute.current().rank == 0
    model.fit(
        data,
        validation_data=tlo.distribute.shard(test.dataset(512).take(steps or -1)),
        epochs=epochs,
        shuffle=False,
        callbacks=[checkpoint],
        verbose=2 if first else 0,
    )
    tlo.save_model(model, folder / "over_workers.keras")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slurm", action="store_true", help="workers were started by srun")
    parser.add_argument(
        "--kubernetes", nargs=2, metavar=("SIZE", "SERVICE"), help="workers are pods of a Job"
    )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, help="steps per epoch (default: all)")
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    arguments = parser.parse_args()
    if arguments.slurm:
        tlo.distribute.connect(*tlo.distribute.slurm_workers())
    elif arguments.kubernetes:
        size, service = arguments.kubernetes
        pods = tlo.distribute.kubernetes_workers(int(size), service)
        tlo.distribute.connect(*pods, timeout=600)  # images are pulled at different times
    else:
        tlo.distribute.connect()  # by TF_CONFIG; without it, one process
    train(arguments.epochs, arguments.steps, arguments.folder)


if __name__ == "__main__":
    main()
