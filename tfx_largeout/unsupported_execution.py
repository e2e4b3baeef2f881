# SPDX-License-Identifier: Apache-2.0
"""Ways of running that what changes variables in place refuses: several replicas, and XLA."""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.tensorflow_internals import is_for_xla


def refuse_replicas(rule: str, advice: str) -> None:
    """Refuses the present strategy if it has more than one replica, or variables elsewhere.

    Raises:
        RuntimeError: It has. The message is the rule, what was got, and the advice.
    """
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        raise RuntimeError(f"{rule}; got {type(strategy).__name__}. {advice}")
    replicas = strategy.num_replicas_in_sync
    if replicas > 1:
        raise RuntimeError(f"{rule}; got num_replicas_in_sync={replicas}. {advice}")


def refuse_xla(rule: str, got: str, advice: str) -> None:
    """Refuses to be traced for XLA.

    Raises:
        RuntimeError: The present graph is for XLA. The message is the rule, what was got, and the
            advice.
    """
    if tf.executing_eagerly():
        return
    if is_for_xla(tf.compat.v1.get_default_graph()):
        raise RuntimeError(f"{rule}; got {got}. {advice}")
