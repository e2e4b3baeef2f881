# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import tensorflow as tf
from google.protobuf import struct_pb2

from tfx_largeout.compare.timed_fit import EventFile


def read_events(folder):
    (file,) = folder.glob("*tfevents*")
    records = tf.data.TFRecordDataset(str(file)).as_numpy_iterator()
    return [tf.compat.v1.Event.FromString(record) for record in records]


def test_scalars_are_stamped_with_training_time(tmp_path):
    events = EventFile(str(tmp_path), {})
    events.scalars(0, 0.0, {"precision/at_1": 0.0})
    events.scalars(7, 12.5, {"precision/at_1": 0.25, "loss/train": 3.0})
    events.close(20.0)
    version, _start, first, second, end = read_events(tmp_path)
    assert version.file_version == "brain.Event:2"
    assert (first.step, second.step) == (0, 7)
    assert second.wall_time - first.wall_time == pytest.approx(12.5)
    assert end.wall_time - first.wall_time == pytest.approx(20.0)
    assert {v.tag: v.simple_value for v in second.summary.value} == {
        "precision/at_1": 0.25,
        "loss/train": 3.0,
    }


@pytest.mark.parametrize("length", [1, 300])
def test_hyper_parameters(tmp_path, length):
    hyper_parameters = {"head": "x" * length, "learning_rate": 0.5, "nesterov": True}
    EventFile(str(tmp_path), hyper_parameters).close(1.0)
    _version, start, end = read_events(tmp_path)
    (value,) = start.summary.value
    assert value.tag == "_hparams_/session_start_info"
    assert value.metadata.plugin_data.plugin_name == "hparams"
    # Field 3 of HParamsPluginData, of `size` bytes: SessionStartInfo, whose field 1 is the map.
    content = value.metadata.plugin_data.content
    assert content[0] == 3 << 3 | 2
    size, position, shift = 0, 1, 0
    while True:
        byte = content[position]
        size |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if not byte & 0x80:
            break
    assert size == len(content) - position
    read = struct_pb2.Struct.FromString(content[position:])
    assert dict(read.items()) == hyper_parameters
    (value,) = end.summary.value
    assert value.tag == "_hparams_/session_end_info"
    assert value.metadata.plugin_data.content == bytes([4 << 3 | 2, 2, 1 << 3, 1])
