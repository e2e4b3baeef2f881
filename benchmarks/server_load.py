# SPDX-License-Identifier: Apache-2.0
"""A load test of examples/serve: requests per second, and their latency.

Each client sends requests one after the other, on a separate connection, with words from WordNet's
definitions. Clients are threads of this process and share the machine with the server: their time
counts as latency. Rejected (503) and failed requests count as errors, without latency.

    python examples/serve/server.py models/words &
    python benchmarks/server_load.py --concurrency 1 8 64 --seconds 30
"""

from __future__ import annotations

import argparse
import http.client
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from urllib.parse import urlsplit

import harness
import numpy as np

from tfx_largeout.datasets import wordnet_names

WORDS = 8  # of a text
HEADERS = {"Content-Type": "application/json"}


class Client(NamedTuple):
    """The observations of a client."""

    seconds: list[float]
    errors: int


def ask(address: str, bodies: list[bytes], end: float, together: threading.Barrier) -> Client:
    """Sends requests until `end` seconds after all clients have begun."""
    seconds, errors = [], 0
    connection = http.client.HTTPConnection(address, timeout=60)
    together.wait()
    last = time.perf_counter() + end
    while (begin := time.perf_counter()) < last:
        body = bodies[(len(seconds) + errors) % len(bodies)]
        try:
            connection.request("POST", "/v1/predict", body, HEADERS)
            response = connection.getresponse()
            response.read()
            done = response.status == 200
        except (OSError, http.client.HTTPException):
            connection.close()  # the next request connects again
            done = False
        if done:
            seconds.append(time.perf_counter() - begin)
        else:
            errors += 1
    connection.close()
    return Client(seconds, errors)


def load(address: str, requests: list[bytes], concurrency: int, seconds: float) -> list[Client]:
    """Runs `concurrency` clients that send requests at the same time."""
    together = threading.Barrier(concurrency)
    parts = [requests[number::concurrency] for number in range(concurrency)]
    with ThreadPoolExecutor(concurrency) as pool:
        clients = [pool.submit(ask, address, part, seconds, together) for part in parts]
        return [client.result() for client in clients]


def metrics_of(address: str) -> dict[str, float]:
    """Returns the server's metrics by name."""
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def made_requests(count: int, texts: int, k: int, num_probed: int | None) -> list[bytes]:
    """Returns requests for texts of words, frequent ones more often."""
    words, _ = wordnet_names("hyper")
    shares = 1 / np.arange(1, len(words) + 1)
    drawn = np.random.default_rng(0).choice(words, [count, texts, WORDS], p=shares / shares.sum())
    more = {} if num_probed is None else {"num_probed": num_probed}
    return [
        json.dumps({"texts": [" ".join(text) for text in request], "k": k, **more}).encode()
        for request in drawn
    ]


def row_of(clients: list[Client], seconds: float, before: dict, after: dict) -> dict:
    """Returns the measurements of a load."""

    def more(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    latencies = 1e3 * np.array([each for client in clients for each in client.seconds])
    p50, p99 = np.quantile(latencies, [0.5, 0.99]) if len(latencies) else (np.nan, np.nan)
    calls = max(more("predict_batch_size_count"), 1)
    return {
        "seconds": round(seconds, 1),
        "requests_a_second": round(len(latencies) / seconds, 1),
        "p50_ms": round(float(p50), 2),
        "p99_ms": round(float(p99), 2),
        "errors": sum(client.errors for client in clients),
        "mean_batch": round(more("predict_batch_size_sum") / calls, 2),
        "server_mib": round(after["process_resident_memory_bytes"] / 2**20, 1),
        "server_growth_mib": round(more("process_resident_memory_bytes") / 2**20, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="", help="what the rows call the model")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--texts", type=int, default=1, help="of a request")
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--num-probed", type=int)
    parser.add_argument("--quick", action="store_true", help="two seconds; nothing is written")
    arguments = parser.parse_args()
    address = urlsplit(arguments.url).netloc
    seconds = 2.0 if arguments.quick else arguments.seconds
    requests = made_requests(2048, arguments.texts, arguments.k, arguments.num_probed)
    for concurrency in arguments.concurrency:
        load(address, requests, concurrency, min(2.0, seconds))  # warms caches and memory
        before, begin = metrics_of(address), time.perf_counter()
        clients = load(address, requests, concurrency, seconds)
        taken, after = time.perf_counter() - begin, metrics_of(address)
        row = {
            "model": arguments.model,
            "concurrency": concurrency,
            "texts": arguments.texts,
            "k": arguments.k,
            "num_probed": arguments.num_probed or "",
            **row_of(clients, taken, before, after),
            **harness.machine(),
        }
        print({name: row[name] for name in list(row)[1:13]}, flush=True)
        if not arguments.quick:
            harness.append_row(harness.RESULTS / "server_load.csv", row)


if __name__ == "__main__":
    main()
