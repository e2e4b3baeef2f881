# SPDX-License-Identifier: Apache-2.0
"""The server's metrics, for Prometheus."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Requests by status code, their latency, the model's batches, and the queue."""

    def __init__(self) -> None:
        self._registry = own = CollectorRegistry()
        ProcessCollector(registry=own)  # memory, processor time
        self.requests = Counter("predict_requests", "Requests by status", ["code"], registry=own)
        self.latency = Histogram(
            "predict_seconds", "From request to answer", registry=own, buckets=SECONDS
        )
        self.batch_size = Histogram(
            "predict_batch_size", "Texts of a call of the model", registry=own, buckets=TEXTS
        )
        self.waiting = Gauge("predict_waiting", "Texts that wait for the model", registry=own)
        self.ready = Gauge("predict_ready", "Whether the model is loaded", registry=own)

    def text(self) -> bytes:
        """Returns all metrics in Prometheus's text format."""
        return generate_latest(self._registry)
