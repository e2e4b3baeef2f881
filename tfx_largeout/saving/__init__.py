# SPDX-License-Identifier: Apache-2.0
"""What Keras files need beyond what Keras itself writes."""
