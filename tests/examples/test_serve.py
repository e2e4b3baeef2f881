# SPDX-License-Identifier: Apache-2.0
"""examples/serve over loopback, in a process that can't import this package."""

from __future__ import annotations

import asyncio
import functools
import http.client
import importlib.util
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from child import start_child

import tfx_largeout as tlo

for needed in ("fastapi", "prometheus_client", "uvicorn"):
    pytest.importorskip(needed)

FOLDER = Path(__file__).parents[2] / "examples" / "serve"
CLASSES, K, MAX_BATCH, MAX_WAITING = 50, 12, 8, 40
WORDS = [f"word{number}" for number in range(30)]


def load_example(stem):
    spec = importlib.util.spec_from_file_location(f"serve_{stem}", FOLDER / f"{stem}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where pydantic looks for its types
    spec.loader.exec_module(module)
    return module


class Server:
    """examples/serve/server.py in a separate process, where `import tfx_largeout` is an error."""

    def __init__(self, folder, model, *options):
        (folder / "blocked").mkdir(exist_ok=True)
        (folder / "blocked" / "tfx_largeout.py").write_text("raise ImportError('not in a server')")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = start_child(
            folder,
            str(FOLDER / "server.py"),
            str(model),
            f"--port={self.port}",
            *options,
            env={**os.environ, "PYTHONPATH": str(folder / "blocked")},
        )

    def ask(self, method, path, body=None):
        """Returns status, headers and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def predict(self, **question):
        code, _, body = self.ask("POST", "/v1/predict", json.dumps(question))
        assert code == 200, body
        return json.loads(body)["predictions"]

    def metric(self, name):
        for line in self.ask("GET", "/metrics")[2].decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        return 0.0

    def wait_for(self, code, seconds=120):
        """Waits until /health says so."""
        end = time.monotonic() + seconds
        while True:
            assert self.process.poll() is None, self.process.communicate()
            try:
                if self.ask("GET", "/health")[0] == code:
                    return
            except ConnectionError:
                pass  # it does not listen yet
            assert time.monotonic() < end
            time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def stop(self):
        """Ends it; returns its standard error."""
        self.process.terminate()
        return self.process.communicate(timeout=60)[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder of a model that takes texts, with lists, and classes to exclude."""
    words = load_example("text").TfIdf(WORDS, np.linspace(1, 2, len(WORDS), dtype=np.float32))
    head = tlo.heads.DenseHead(CLASSES, bias_initializer="random_normal")
    trunk = tlo.layers.SparseDense(8, "tanh")
    layers = [keras.Input((), dtype="string"), words, trunk, head]
    folder = tmp_path_factory.mktemp("models") / "words"
    names = [f"Klasse {c} ä" for c in range(CLASSES)]
    options = {"activation": "softmax", "names": names, "index": "ivf", "exclude": True}
    tlo.export(keras.Sequential(layers), folder, K, **options)
    return folder


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    options = (f"--max-batch={MAX_BATCH}", "--max-delay-ms=50", f"--max-waiting={MAX_WAITING}")
    with Server(tmp_path_factory.mktemp("server"), model, *options) as own:
        own.wait_for(200)
        yield own
        errors = own.stop()
        assert "Traceback" not in errors, errors


def texts_of(seed, count):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, 5)) for _ in range(count)]


@functools.cache
def signatures_of(model):
    return tf.saved_model.load(str(model)).signatures


def expected(model, texts, k=10, num_probed=None):
    """The answer of the SavedModel itself."""
    signatures = signatures_of(model)
    given = {"inputs": tf.constant(texts), "exclude": tf.zeros([len(texts), 0], tf.int64)}
    if num_probed is None:
        answer = signatures["serving_default"](**given)
    else:
        answer = signatures["with_num_probed"](**given, num_probed=tf.constant(num_probed))
    columns = (answer[key].numpy() for key in ("names", "ids", "scores"))
    return [
        [
            {"name": name.decode(), "id": int(id_), "score": pytest.approx(float(score), rel=1e-5)}
            for name, id_, score in zip(*row, strict=True)
            if id_ >= 0
        ][:k]
        for row in zip(*columns, strict=True)
    ]


@pytest.mark.parametrize("options", [{}, {"k": 1}, {"k": K}, {"k": 5, "num_probed": 2}])
def test_says_what_the_model_says(server, model, options):
    texts = texts_of(0, 20)  # more than a batch
    assert server.predict(texts=texts, **options) == expected(model, texts, **options)


def test_fewer_than_k_where_the_lists_have_no_more(server, model):
    texts = texts_of(1, 6)
    answers = server.predict(texts=texts, k=K, num_probed=1)
    assert answers == expected(model, texts, K, 1)
    assert min(map(len, answers)) < K


MALFORMED = {
    "no JSON": ("{", "JSON"),
    "nothing": ("", "JSON"),
    "no UTF-8": (b'{"texts": ["\xff"]}', "JSON"),
    "half a character": (r'{"texts": ["\ud800"]}', "JSON"),
    "nested": ("[" * 100_000, "JSON"),
    "no object": ('["word"]', "object"),
    "no texts": ("{}", "texts: Field required"),
    "texts of another type": ('{"texts": "word"}', "texts: "),
    "no text": ('{"texts": []}', "texts: .* at least 1"),
    "too many texts": (json.dumps({"texts": ["a"] * 65}), "texts: .* at most 64"),
    "a number": ('{"texts": ["a", 1]}', r"texts\.1: "),
    "null": ('{"texts": [null]}', r"texts\.0: "),
    "NaN": ('{"texts": [NaN]}', r"texts\.0: "),
    "an empty text": ('{"texts": ["a", ""]}', r"texts\.1: .* at least 1"),
    "a text of spaces": ('{"texts": [" \\n"]}', r"texts\.0: .* at least 1"),
    "a long text": (json.dumps({"texts": ["a" * 2001]}), r"texts\.0: .* at most 2000"),
    "no k": ('{"texts": ["a"], "k": 0}', "k: "),
    "a large k": ('{"texts": ["a"], "k": 13}', "k: .* at most 12.* got 13"),
    "a huge k": ('{"texts": ["a"], "k": 1' + "0" * 30 + "}", "k: "),
    "a number without end": ('{"texts": ["a"], "k": 1' + "0" * 5000 + "}", "JSON"),
    "a fractional k": ('{"texts": ["a"], "k": 1.5}', "k: "),
    "a NaN k": ('{"texts": ["a"], "k": NaN}', "k: "),
    "k in words": ('{"texts": ["a"], "k": "3"}', "k: "),
    "k true": ('{"texts": ["a"], "k": true}', "k: "),
    "no list": ('{"texts": ["a"], "num_probed": 0}', "num_probed: "),
    "more lists than there are": (
        '{"texts": ["a"], "num_probed": 1000}',
        "num_probed: .* number of lists; got 1000",
    ),
    "more lists than int32": ('{"texts": ["a"], "num_probed": 4294967297}', "num_probed: "),
    "another key": ('{"texts": ["a"], "top": 3}', "top: "),
}


@pytest.mark.parametrize("body, message", MALFORMED.values(), ids=MALFORMED)
def test_malformed_requests_are_refused_with_a_reason(server, model, body, message):
    code, _, answer = server.ask("POST", "/v1/predict", body)
    assert code == 400
    detail = json.loads(answer)["detail"]
    assert len(detail) < 300
    assert re.search(message, detail), detail
    assert server.predict(texts=["word1"]) == expected(model, ["word1"])
    assert server.metric('predict_requests_total{code="500"}') == 0


def test_a_large_request_is_refused_before_it_is_read(server):
    assert server.ask("POST", "/v1/predict", b"x" * (2**20 + 1))[0] == 413


def test_other_paths_and_methods(server):
    assert server.ask("GET", "/v1/predict")[0] == 405
    assert server.ask("GET", "/nothing")[0] == 404


def test_a_client_that_goes_away_is_no_error_of_the_server(server):
    before = server.metric('predict_requests_total{code="400"}')
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n{")
    end = time.monotonic() + 30
    while server.metric('predict_requests_total{code="400"}') == before:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert server.metric('predict_requests_total{code="500"}') == 0


def test_more_than_may_wait_get_503(server):
    code, headers, body = server.ask(
        "POST", "/v1/predict", json.dumps({"texts": ["a"] * (MAX_WAITING + 1)})
    )
    assert (code, headers["Retry-After"]) == (503, "1")
    assert "too many" in json.loads(body)["detail"]


def test_requests_at_the_same_time_are_one_batch_and_a_load_has_no_error(server, model):
    """Eight clients, each with ten requests; each gets the answers to its own texts."""
    calls, texts, codes = (
        server.metric(name)
        for name in (
            "predict_batch_size_count",
            "predict_batch_size_sum",
            'predict_requests_total{code="200"}',
        )
    )
    own = texts_of(2, 8)
    answers = expected(model, own)
    together = threading.Barrier(8)

    def client(number):
        together.wait()
        for _ in range(10):
            assert server.predict(texts=[own[number]]) == [answers[number]]

    with ThreadPoolExecutor(8) as clients:
        done = 10 * len(list(clients.map(client, range(8))))
    assert server.metric('predict_requests_total{code="200"}') == codes + done
    assert server.metric("predict_batch_size_sum") == texts + done
    assert done / (server.metric("predict_batch_size_count") - calls) > 1.5
    assert server.metric("predict_seconds_count") >= codes + done


def test_health_and_page(server):
    assert json.loads(server.ask("GET", "/health")[2]) == {"ready": True}
    code, headers, page = server.ask("GET", "/")
    assert code == 200 and headers["Content-Type"].startswith("text/html")
    assert b"/v1/predict" in page
    assert b"//" not in page.replace(b"// ", b"") and b"src=" not in page, "all of it is here"


@pytest.mark.thorough
def test_sigterm_lets_requests_end(model, tmp_path):
    with Server(tmp_path, model, "--max-delay-ms=5000") as server, ThreadPoolExecutor(1) as client:
        server.wait_for(200)
        answer = client.submit(server.predict, texts=["word1 word2"])
        while server.metric("predict_waiting") == 0:  # it waits for others for five seconds
            assert not answer.done()
            time.sleep(0.01)
        errors = server.stop()
        assert answer.result() == expected(model, ["word1 word2"])
    assert server.process.returncode in (0, -signal.SIGTERM)
    assert "Application shutdown complete" in errors and "Traceback" not in errors


@pytest.mark.thorough
def test_is_not_ready_while_the_model_loads_and_ends_if_it_can_not(tmp_path):
    (tmp_path / "model").mkdir()
    graph = tmp_path / "model" / "saved_model.pb"
    os.mkfifo(graph)  # who reads it waits for a writer
    with Server(tmp_path, tmp_path / "model") as server:
        server.wait_for(503)
        code, headers, body = server.ask("POST", "/v1/predict", '{"texts": ["a"]}')
        assert (code, headers["Retry-After"]) == (503, "1")
        assert "not loaded" in json.loads(body)["detail"]
        with graph.open("wb"):
            graph.unlink()  # or it would be waited for again
        _, errors = server.process.communicate(timeout=60)
    assert server.process.returncode == 1
    assert "can't be served" in errors and "Traceback" not in errors


class Request:
    """A request with a body, as far as `read_question` looks at it."""

    def __init__(self, body):
        self.body = body

    async def stream(self):
        yield self.body


def test_k_and_num_probed_by_what_the_model_has():
    question = load_example("question")

    def read(body, most, takes_num_probed):
        return asyncio.run(question.read_question(Request(body), most, takes_num_probed))

    assert read(b'{"texts": ["a"]}', 5, False).k == 5
    assert read(b'{"texts": [" a "]}', 50, False).texts == ["a"]
    assert read(b'{"texts": ["a"], "num_probed": 3}', 50, True).num_probed == 3
    with pytest.raises(question.HTTPException, match="exclude: this model was exported without"):
        read(b'{"texts": ["a"], "exclude": [3]}', 50, False)
    with pytest.raises(question.HTTPException, match="num_probed: this model has no index"):
        read(b'{"texts": ["a"], "num_probed": 3}', 50, False)


def test_a_model_without_names_gives_ids(tmp_path):
    words = load_example("text").TfIdf(WORDS, np.ones(len(WORDS), np.float32))
    layers = [keras.Input((), dtype="string"), words, tlo.layers.SparseDense(4)]
    tlo.export(keras.Sequential([*layers, tlo.heads.DenseHead(CLASSES)]), tmp_path / "model", 3)
    answers = load_example("model").Model(str(tmp_path / "model"))(["word1 word2", "word3"])
    assert [len(answer) for answer in answers] == [3, 3]
    assert all(best["name"] == str(best["id"]) for answer in answers for best in answer)


def test_excluded_classes(server):
    (plain,) = server.predict(texts=["word1 word2"], k=3)
    first, _, third = (best["id"] for best in plain)
    (found,) = server.predict(texts=["word1 word2"], k=3, exclude=[first, third])
    assert found[0] == plain[1] and first not in [best["id"] for best in found]
    everything = [[] for _ in range(2)]
    assert server.predict(texts=["word1", "a"], exclude=list(range(CLASSES))) == everything
    for exclude, message in (
        ([CLASSES], "got up to 50"),
        ([-1], "exclude.0: "),
        ([0.5], "excl"),
    ):
        body = json.dumps({"texts": ["a"], "exclude": exclude})
        code, _, answer = server.ask("POST", "/v1/predict", body)
        assert code == 400 and message in answer.decode(), answer


def test_a_model_that_takes_no_texts_is_refused(tmp_path):
    layers = [keras.Input((3,)), tlo.heads.DenseHead(CLASSES)]
    tlo.export(keras.Sequential(layers), tmp_path / "model")
    with pytest.raises(ValueError, match=r"must take texts.*; got"):
        load_example("model").Model(str(tmp_path / "model"))
