# SPDX-License-Identifier: Apache-2.0
"""Logits of candidate classes, and the update of their rows."""
