# SPDX-License-Identifier: Apache-2.0
"""`python -m tfx_largeout.compare` is `tfx-largeout compare`."""

from __future__ import annotations

import sys

from tfx_largeout.compare.cli import main

sys.exit(main(["compare", *sys.argv[1:]]))
