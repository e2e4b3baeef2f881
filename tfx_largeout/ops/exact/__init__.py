# SPDX-License-Identifier: Apache-2.0
"""Exact passes over all classes, in bounded memory."""
