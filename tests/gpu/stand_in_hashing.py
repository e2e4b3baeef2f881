# SPDX-License-Identifier: Apache-2.0
"""Hash indexes on GPU:0 compared with the processor, in a process with a stand-in driver.

LD_LIBRARY_PATH=DRIVER python stand_in_hashing.py LIBRARY   # of kernels that run on the processor
"""

from __future__ import annotations

import os
import sys

import numpy as np
import tensorflow as tf

from tfx_largeout.ops import library
from tfx_largeout.ops.hashing.bucket_candidates import BucketOrder, bucket_candidates
from tfx_largeout.ops.hashing.hash_codes import HashFunctions, hash_codes
from tfx_largeout.ops.hashing.hash_tables import HashTables, update_tables

CLASSES, WIDTH, TABLES, HASHES = 300, 12, 4, 2
RNG = np.random.default_rng(0)


def whole_numbers(*shape):
    """Small integers, many of them 0. Products are exact in any order of sums."""
    return (RNG.integers(-3, 4, shape) * (RNG.random(shape) < 0.5)).astype("float32")


def winners(bins):
    order = [RNG.permutation(WIDTH) for _ in range(TABLES * HASHES)]
    return HashFunctions.by_winner(np.concatenate(order).reshape(-1, 3)[: TABLES * HASHES], bins)


FAMILIES = {
    "wta": winners(1),
    "dwta": winners(4),
    "simhash": HashFunctions.by_planes(whole_numbers(TABLES * HASHES, WIDTH)),
}
RANGES = HashFunctions.by_planes(
    np.concatenate([whole_numbers(TABLES * HASHES, WIDTH + 1), np.zeros([8, 1], "float32")], 1)
)


def on(device, *arrays):
    with tf.device(device):
        return [tf.constant(x) for x in arrays]


def functions_on(device, functions):
    return HashFunctions(*on(device, functions.elements, functions.planes), functions.bins)


def codes_on(device, vectors, functions):
    (vectors,) = on(device, vectors)
    with tf.device(device):
        return hash_codes(vectors, functions_on(device, functions), TABLES, HASHES)


def eagerly_and_in_a_graph(function, *arguments):
    in_graph = tf.function(lambda: function(*arguments), autograph=False)
    return function(*arguments), in_graph()


def check_codes():
    vectors = whole_numbers(300, WIDTH)
    for functions in FAMILIES.values():
        expected = codes_on("CPU:0", vectors, functions)
        for found in eagerly_and_in_a_graph(codes_on, "GPU:0", vectors, functions):
            assert "GPU:0" in found.device, found.device
            np.testing.assert_array_equal(found.numpy(), expected.numpy())
    vectors[7, 2] = np.inf
    out_of_range = HashFunctions(np.full([8, 3], WIDTH, "int32"), np.zeros([0, 0], "float32"), 1)
    message = "vectors must be finite; got an infinite or NaN number in row 7"
    refuses(message, codes_on, "GPU:0", vectors, FAMILIES["wta"])
    message = "elements must be in [0, 12); got 12 at position [0, 0]"
    refuses(message, codes_on, "GPU:0", vectors[:7], out_of_range)
    refuses("vectors must be [n, D]", codes_on, "GPU:0", vectors[0], FAMILIES["wta"])


def refuses(message, call, *arguments):
    try:
        call(*arguments)
    except tf.errors.InvalidArgumentError as error:
        assert message in str(error), error
    else:
        raise AssertionError(f"not refused: {message}")


class Index:
    """W, b and tables over them in variables on a device."""

    def __init__(self, device, functions, radii, dtype, kernel):
        self.device, self.functions = device, functions
        base = 2 if len(functions.planes) else functions.elements.shape[1]
        num_buckets = max(len(radii), 1) * base**HASHES
        with tf.device(device):
            self.kernel = tf.Variable(kernel.astype(tf.as_dtype(dtype).as_numpy_dtype))
            self.bias = tf.Variable(self.kernel.numpy()[:, 0])
            shapes = (TABLES, CLASSES), (TABLES, num_buckets + 1), (CLASSES,)
            zeros = [tf.Variable(np.zeros(shape, "uint32")) for shape in shapes]
            self.tables = HashTables(*zeros, tf.Variable(np.full(TABLES, 2**32 - 1, "uint32")))
        self.radii = np.asarray(radii, "float32")

    def update(self, touched, now, first, end):
        touched, radii = on(self.device, np.asarray(touched, "int64"), self.radii)
        now, which = on("CPU:0", np.int32(now), np.array([first, end], "int64"))
        with tf.device(self.device):
            return update_tables(
                *(self.kernel, self.bias, self.tables, functions_on(self.device, self.functions)),
                *(HASHES, touched, now, which, radii),
            )

    def arrays(self):
        return [x.numpy() for x in self.tables]


def check_same(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def check_tables():
    kernel = whole_numbers(CLASSES, WIDTH)
    cases = [(functions, ()) for functions in FAMILIES.values()] + [(RANGES, (9.5, 6.5, 4.5))]
    for functions, radii in cases:
        for dtype in ("float32", "bfloat16"):
            gpu, processor = (
                Index(device, functions, radii, dtype, kernel) for device in ("GPU:0", "CPU:0")
            )
            in_graph = tf.function(gpu.update, autograph=False)
            before = [x.value() for x in gpu.tables]  # share the variables' buffers
            first = gpu.arrays()
            for now, (update, touched, some) in enumerate(
                (
                    (gpu.update, range(CLASSES), (0, TABLES)),
                    (gpu.update, [5, -1, 90], (0, 0)),
                    (in_graph, [5, 7, 299], (1, 3)),
                    (gpu.update, [], (0, TABLES)),
                )
            ):
                rows = whole_numbers(CLASSES, WIDTH)
                for index in (gpu, processor):
                    changed = index.kernel.numpy()
                    changed[list(touched)] = rows[list(touched)]
                    index.kernel.assign(on(index.device, changed)[0])
                moved = update(touched, now, *some)
                assert moved.numpy() == processor.update(touched, now, *some).numpy()
                check_same(gpu.arrays(), processor.arrays())
            check_same([x.numpy() for x in before], first)
        check_queries(gpu, processor, max(len(radii), 1))
    check_refusals(gpu)


def check_refusals(gpu):
    before = gpu.arrays()
    wrong = gpu.kernel.numpy()
    good = wrong.copy()
    wrong[11, 3] = np.nan
    gpu.kernel.assign(on("GPU:0", wrong)[0])
    refuses("got an infinite or NaN number in row 11", gpu.update, [11], 9, 0, 2)
    gpu.kernel.assign(on("GPU:0", good)[0])
    radii, gpu.radii = gpu.radii, gpu.radii[::-1].copy()
    refuses("radii must fall", gpu.update, [], 9, 0, 2)
    gpu.radii = radii
    refuses("now must be at least 0; got -3", gpu.update, [], -3, 0, 2)
    refuses("tables must be a range in [0, 4]; got [3, 5)", gpu.update, [], 9, 3, 5)
    after = gpu.arrays()
    assert after[2][11] == 9  # W has changed, which a later call is to see
    check_same([*after[:2], after[3]], [*before[:2], before[3]])
    starts = before[1].copy()
    starts[1, 3] = 99999
    gpu.tables.starts.assign(on("GPU:0", starts)[0])
    refuses("table 1 is corrupt; rebuild the index", gpu.update, [], 9, 0, 2)
    gpu.tables.starts.assign(on("GPU:0", before[1])[0])
    gpu.update([], 9, 0, 2)  # variables are unlocked again


def check_queries(gpu, processor, num_ranges):
    num_buckets = gpu.tables.starts.shape[1] - 1
    codes = RNG.integers(-1, num_buckets // num_ranges, (9, 2, TABLES)).astype("int32")
    order = RNG.permutation(TABLES).astype("int32"), RNG.integers(0, 2**32, TABLES), np.int64(77)

    def find(index, per_example, codes, order):
        given = on(index.device, codes, *order)
        with tf.device(index.device):
            return bucket_candidates(
                *(index.tables, given[0], 60, BucketOrder(*given[1:])),
                per_example=per_example,
                max_per_bucket=40,
                num_ranges=num_ranges,
                gives_marks=True,
            )

    for per_example in (False, True):
        expected = find(processor, per_example, codes, order)
        for found in eagerly_and_in_a_graph(find, gpu, per_example, codes, order):
            assert all("GPU:0" in x.device for x in found)
            check_same([x.numpy() for x in found], [x.numpy() for x in expected])
        for message, *wrong in (
            ("codes must be below", codes + num_buckets, order),
            ("order must be a permutation", codes, (order[0] * 0, *order[1:])),
            ("rotations must be in", codes, (order[0], -1 - order[1], order[2])),
            ("first_class must be in [0, 300); got 300", codes, (*order[:2], np.int64(300))),
        ):
            refuses(message, find, gpu, per_example, *wrong)


if __name__ == "__main__":
    assert tf.config.list_physical_devices("GPU"), "no GPU"
    assert library.load() is not None
    os.environ["TFX_LARGEOUT_GPU_KERNELS"] = sys.argv[1]
    assert library.load_gpu_kernels()
    check_codes()
    check_tables()
    assert "hash indexes" in library.library_status()
    print("GPU ops agree with those of the processor")
