# SPDX-License-Identifier: Apache-2.0
"""Custom TensorFlow ops, each with a fallback that is composed of TensorFlow's own."""
