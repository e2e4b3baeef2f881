# SPDX-License-Identifier: Apache-2.0
"""The main job, `tfx-largeout compare`: several heads trained side by side on the same data.

`cli.py` reads the arguments and `job.py` runs the job: for each head a child process (`worker.py`)
trains with plain `model.fit` (`timed_fit.py`) and sends its progress; the results become a table,
CSV, JSON, plots and TensorBoard runs (`comparison.py`). `head_table.py` lists the heads.
"""

from __future__ import annotations
