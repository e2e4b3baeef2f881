# SPDX-License-Identifier: Apache-2.0
"""Hash tables over the rows of W."""
