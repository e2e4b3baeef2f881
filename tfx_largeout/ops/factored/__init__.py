# SPDX-License-Identifier: Apache-2.0
"""The exact update of W = V U."""
