# SPDX-License-Identifier: Apache-2.0
"""Rows of W coded by two codebooks, and draws from the softmax over pairs of code words."""
