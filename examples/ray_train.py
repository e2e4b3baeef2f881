# SPDX-License-Identifier: Apache-2.0
"""over_workers.py as the workers of Ray Train, which may be on many machines.

    pip install "ray[train]" && python examples/ray_train.py --workers 2

Ray starts the workers and gives each its TF_CONFIG. A failed run continues from its last
checkpoint, in a folder that all machines share.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer


def run_worker(settings: dict[str, Any]) -> None:
    """The function of each worker."""
    sys.path.insert(0, settings["examples"])
    import over_workers

    import tfx_largeout as tlo

    tlo.distribute.connect()
    over_workers.train(settings["epochs"], settings["steps"], Path(settings["folder"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, help="steps per epoch (default: all)")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs"), help="a folder that all workers share"
    )
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    settings = {
        "epochs": arguments.epochs,
        "steps": arguments.steps,
        "folder": str(folder),
        "examples": str(Path(__file__).resolve().parent),
    }
    trainer = TensorflowTrainer(
        run_worker,
        train_loop_config=settings,
        scaling_config=ScalingConfig(num_workers=arguments.workers),
        run_config=RunConfig(
            storage_path=str(folder / "ray"), failure_config=FailureConfig(max_failures=3)
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
