# SPDX-License-Identifier: Apache-2.0
"""EventFile: a TensorBoard run whose relative time is training time."""

from __future__ import annotations

import os
import time
from typing import Any

import tensorflow as tf
from google.protobuf import struct_pb2

_STATUS_SUCCESS = bytes([1 << 3, 1])  # field 1, an enum, is 1


class EventFile:
    """Writes scalars and hyper-parameters for TensorBoard.

    `tf.summary` stamps each value with the time of day. Here the stamp is the start plus the
    seconds of training, so that TensorBoard's RELATIVE axis shows the time that counts: evaluation
    and compilation don't.

    The HParams tab reads protocol buffers that belong to the package `tensorboard`, which need
    not be installed. Two small messages are all it takes, written here in their wire format: the
    one with the hyper-parameters is, byte for byte, a `google.protobuf.Struct`.

    Args:
        folder: The folder of the run; it is created.
        hyper_parameters: Numbers, strings and bools by name.
    """

    def __init__(self, folder: str, hyper_parameters: dict[str, Any]) -> None:
        os.makedirs(folder, exist_ok=True)
        self._start = time.time()
        path = os.path.join(folder, f"events.out.tfevents.{int(self._start)}.{os.getpid()}")
        self._writer = tf.io.TFRecordWriter(path)
        version = tf.compat.v1.Event(wall_time=self._start, file_version="brain.Event:2")
        self._writer.write(version.SerializeToString())
        hparams = struct_pb2.Struct()
        hparams.update(hyper_parameters)
        self._write_hparams("session_start_info", 3, hparams.SerializeToString(deterministic=True))

    def scalars(self, step: int, seconds: float, values: dict[str, float]) -> None:
        """Writes one value for each tag, at a step and at its seconds of training."""
        summary = tf.compat.v1.Summary()
        for tag, value in values.items():
            summary.value.add(tag=tag, simple_value=value)
        self._write(summary, step, seconds)

    def close(self, seconds: float) -> None:
        """Marks the run as a success, after so many seconds of training."""
        self._write_hparams("session_end_info", 4, _STATUS_SUCCESS, seconds)
        self._writer.close()

    def _write_hparams(self, tag: str, field: int, message: bytes, seconds: float = 0.0) -> None:
        summary = tf.compat.v1.Summary()
        value = summary.value.add(tag=f"_hparams_/{tag}")
        value.tensor.CopyFrom(tf.make_tensor_proto(0.0))
        value.metadata.plugin_data.plugin_name = "hparams"
        value.metadata.plugin_data.content = _length_delimited(field, message)
        self._write(summary, 0, seconds)

    def _write(self, summary: tf.compat.v1.Summary, step: int, seconds: float) -> None:
        wall_time = self._start + seconds
        event = tf.compat.v1.Event(wall_time=wall_time, step=step, summary=summary)
        self._writer.write(event.SerializeToString())
        self._writer.flush()


def _length_delimited(field: int, message: bytes) -> bytes:
    """Returns a message with one field, itself a message, in protocol buffers' wire format."""
    return bytes([field << 3 | 2]) + _varint(len(message)) + message


def _varint(value: int) -> bytes:
    low, high = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(high) if high else bytes([low])
