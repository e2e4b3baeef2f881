# SPDX-License-Identifier: Apache-2.0
"""Resources of a server of an exported model: seconds until it answers, and memory, mapped or not.

    python benchmarks/server_memory.py --classes 10000000    # rows of results/server_memory.csv

The model has random rows, D = 256, k = 10, and searches all classes. Each server is a separate
process, which loads the folder by `tf.saved_model.load` or by `tlo.serving.load`, and answers
queries of one example. Memory is from `/proc`: private pages, mapped pages of files, and, with two
servers at a time, the share of a process (PSS): shared pages count half.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness
import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.serving.export import _write_out
from tfx_largeout.serving.mapped_files import MappedFiles, _Table
from tfx_largeout.serving.stored_rows import StoredColumns, blocks_of_columns, variable

WIDTH, BEST = 256, 10


def write_export(folder: Path, classes: int, dtype: str) -> None:
    """Writes the same files as `tlo.export`, from random columns made block by block."""
    blocks, size = blocks_of_columns(classes, WIDTH, tf.as_dtype(dtype))
    base = np.random.default_rng(0).standard_normal((WIDTH, size), np.float32)
    kind = tf.as_dtype(dtype).as_numpy_dtype
    with tempfile.NamedTemporaryFile(dir=folder.parent) as file:
        for number in range(blocks):
            block = np.roll(base, 31 * number, axis=1) * np.float32(1 + number / blocks / 8)
            if dtype == "int8":
                block = np.clip(np.rint(block * 25), -127, 127)
            block[:, classes - number * size :] = 0
            file.write(block.astype(kind).tobytes())
        file.flush()
        table = _Table(Path(file.name), [blocks, WIDTH, size], tf.as_dtype(dtype))
        scale = variable(tf.fill([blocks, size], 1 / 25)) if dtype == "int8" else None
        columns = StoredColumns(classes, variable(table.mapped()), None, scale)

        @tf.function(input_signature=[tf.TensorSpec([None, WIDTH], name="inputs")])
        def answer(hidden: tf.Tensor) -> dict[str, tf.Tensor]:
            best = columns.best(hidden, BEST, False, None)
            return {"scores": best.scores, "ids": best.ids}

        archive = keras.export.ExportArchive()
        answer.get_concrete_function()
        archive.add_endpoint("serving_default", answer)
        _write_out(archive, folder, MappedFiles(columns.variables))


def memory() -> dict[str, float]:
    """Returns MiB of this process: private, of files, and its share of all."""
    fields = {"RssAnon": "private", "RssFile": "of_files", "Pss": "share"}
    found = {}
    for path in ("/proc/self/status", "/proc/self/smaps_rollup"):
        for line in Path(path).read_text().splitlines()[1:]:
            name, value = line.split(":", 1)
            if name in fields:
                found[fields[name]] = int(value.split()[0]) / 1024
    return found


def serve(folder: str, how: str, queries: int) -> None:
    """Loads a model, answers, and prints the memory used; continues when a line is read."""
    before = memory()
    start, processor = time.perf_counter(), time.process_time()
    model = tlo.serving.load(folder) if how == "mapped" else tf.saved_model.load(folder)
    answer = model.signatures["serving_default"]
    load = time.perf_counter() - start
    hidden = np.random.default_rng(1).standard_normal((queries + 1, 1, WIDTH), np.float32)
    answer(inputs=tf.constant(hidden[0]))
    ready = time.perf_counter() - start
    ready_processor = time.process_time() - processor
    at_ready = memory()
    seconds, processor = [], time.process_time()
    for query in hidden[1:]:
        start = time.perf_counter()
        answer(inputs=tf.constant(query))["ids"].numpy()
        seconds.append(time.perf_counter() - start)
    processor = (time.process_time() - processor) / queries
    print("answered", flush=True)
    sys.stdin.readline()
    after = memory()
    told = {
        "load_s": round(load, 2),
        "ready_s": round(ready, 2),
        "ready_processor_s": round(ready_processor, 2),  # of all cores
        "ready_private_mib": round(at_ready["private"] - before["private"]),
        "ready_of_files_mib": round(at_ready["of_files"] - before["of_files"]),
        "private_mib": round(after["private"] - before["private"]),
        "of_files_mib": round(after["of_files"] - before["of_files"]),
        "share_mib": round(after["share"] - before["share"]),
        "query_ms": round(1e3 * float(np.median(seconds)), 1),
        "query_processor_ms": round(1e3 * processor, 1),  # of all cores
    }
    print(json.dumps(told), flush=True)
    sys.stdin.readline()


def served(folder: Path, how: str, queries: int, servers: int) -> list[dict[str, Any]]:
    """Returns the figures of servers that run at the same time."""
    command = [sys.executable, __file__, "--serve", str(folder), how, str(queries)]
    with contextlib.ExitStack() as stack:
        pipe = subprocess.PIPE
        running = [
            stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
            for _ in range(servers)
        ]

        def each(line: str) -> list[str]:
            for server in running:
                server.stdin.write(line)
                server.stdin.flush()
            return [server.stdout.readline() for server in running]

        assert each("") == ["answered\n"] * servers
        return [json.loads(line) for line in each("\n")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=10_000_000)
    parser.add_argument("--rows", nargs="+", default=["bfloat16"])
    parser.add_argument("--how", nargs="+", default=["mapped", "read"])
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--folder", type=Path, help="on the disk that is meant")
    parser.add_argument("--quick", action="store_true", help="nothing is written")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve[0], given.serve[1], int(given.serve[2]))
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        for rows in given.rows:
            folder = Path(temporary, rows)
            write_export(folder, given.classes, rows)
            for how in given.how:
                for servers in given.servers if how == "mapped" else [1]:
                    told = served(folder, how, given.queries, servers)[0]
                    about = {"classes": given.classes, "width": WIDTH, "rows": rows, "how": how}
                    size = sum(path.stat().st_size for path in folder.rglob("*"))
                    row = {**about, "servers": servers, "file_mib": size // 2**20, **told}
                    row |= {"queries": given.queries, **harness.machine()}
                    print(row, flush=True)
                    if not given.quick:
                        harness.append_row(harness.RESULTS / "server_memory.csv", row)


if __name__ == "__main__":
    main()
