# SPDX-License-Identifier: Apache-2.0
"""The main job, `tfx-largeout compare`: several heads trained side by side on the same data.

`cli.py` reads the arguments and `job.py` runs the job: for each head a child process (`worker.py`,
started and followed by `runner.py`) trains with plain `model.fit` and sends its progress; the
results become a table, CSV, JSON, plots and TensorBoard runs. `head_table.py` lists the heads.
"""

from __future__ import annotations
