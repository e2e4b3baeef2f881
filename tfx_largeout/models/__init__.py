# SPDX-License-Identifier: Apache-2.0
"""What becomes of a whole model."""
