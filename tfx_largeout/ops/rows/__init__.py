# SPDX-License-Identifier: Apache-2.0
"""Steps on some rows of a variable."""
