# SPDX-License-Identifier: Apache-2.0
"""Functions of whole models: replace the output, resize, save, calibrate."""
