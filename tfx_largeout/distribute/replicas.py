# SPDX-License-Identifier: Apache-2.0
"""Strategies of several replicas, which what changes variables in place refuses."""

from __future__ import annotations

import tensorflow as tf


def refuse_replicas(rule: str, advice: str) -> None:
    """Refuses the present strategy if it has more than one replica.

    Raises:
        RuntimeError: It has. The message is the rule, their number, and the advice.
    """
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas > 1:
        raise RuntimeError(f"{rule}; got num_replicas_in_sync={replicas}. {advice}")
