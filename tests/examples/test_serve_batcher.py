# SPDX-License-Identifier: Apache-2.0
"""The batcher of examples/serve, with a model that only records its arguments."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "examples" / "serve" / "batcher.py"
spec = importlib.util.spec_from_file_location("serve_batcher", FILE)
batcher = importlib.util.module_from_spec(spec)
spec.loader.exec_module(batcher)


class Upper:
    """Answers in capitals, when released; keeps its arguments."""

    def __init__(self):
        self.calls = []
        self.may = threading.Event()
        self.may.set()

    def __call__(self, texts, option):
        self.calls.append((list(texts), option))
        assert self.may.wait(30)
        if "bad" in texts:
            raise ValueError("a bad one")
        return [text.upper() for text in texts]


def run(scenario, **arguments):
    """Runs scenario(batcher, model); returns the calls that the model got."""
    model = Upper()

    async def main():
        own = {"max_batch": 4, "max_delay": 0.05, "max_waiting": 100, **arguments}
        made = batcher.Batcher(model, **own)
        try:
            await asyncio.wait_for(scenario(made, model), 60)
        finally:
            model.may.set()
            await made.stop()

    asyncio.run(main())
    return model.calls


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def test_requests_at_the_same_time_go_together_and_get_their_own_answers():
    async def scenario(made, _):
        answers = await asyncio.gather(made.answers(["a", "b"]), made.answers(["c"]))
        assert answers == [["A", "B"], ["C"]]

    assert run(scenario) == [(["a", "b", "c"], None)]


def test_a_full_batch_does_not_wait_and_no_batch_is_larger():
    async def scenario(made, _):
        assert await made.answers(list("abcdefgh")) == list("ABCDEFGH")

    assert run(scenario, max_delay=1e6) == [(list("abcd"), None), (list("efgh"), None)]


def test_the_next_batch_gathers_while_the_model_works():
    async def scenario(made, model):
        model.may.clear()
        first = asyncio.create_task(made.answers(["a"]))
        await until(lambda: model.calls)
        others = [asyncio.create_task(made.answers([text])) for text in "bcd"]
        await asyncio.sleep(0)
        model.may.set()
        assert await asyncio.gather(first, *others) == [["A"], ["B"], ["C"], ["D"]]

    assert run(scenario, max_delay=0) == [(["a"], None), (list("bcd"), None)]


def test_options_go_apart():
    async def scenario(made, _):
        requests = [made.answers([text], option) for text, option in (("a", 1), ("b", 2), ("c", 1))]
        assert await asyncio.gather(*requests) == [["A"], ["B"], ["C"]]

    assert run(scenario) == [(["a", "c"], 1), (["b"], 2)]


def test_an_error_is_for_its_own_requests_and_the_batcher_goes_on():
    async def scenario(made, _):
        good, bad = await asyncio.gather(
            made.answers(["a"], 1), made.answers(["bad", "b"], 2), return_exceptions=True
        )
        assert good == ["A"]
        assert isinstance(bad, ValueError)
        assert await made.answers(["c"]) == ["C"]

    assert len(run(scenario)) == 3


def test_more_than_may_wait_are_refused_whole_and_those_that_wait_are_answered():
    async def scenario(made, model):
        model.may.clear()
        first = asyncio.create_task(made.answers(["a"]))
        await until(lambda: model.calls)
        second = asyncio.create_task(made.answers(["b", "c"]))
        await asyncio.sleep(0)
        with pytest.raises(batcher.Full):
            await made.answers(["d", "e"])
        third = asyncio.create_task(made.answers(["f"]))
        await asyncio.sleep(0)
        model.may.set()
        assert await asyncio.gather(first, second, third) == [["A"], ["B", "C"], ["F"]]

    assert run(scenario, max_waiting=3, max_delay=0) == [(["a"], None), (["b", "c", "f"], None)]


def test_a_client_that_goes_away_leaves_the_others_their_answers():
    async def scenario(made, model):
        model.may.clear()
        requests = [asyncio.create_task(made.answers([text])) for text in "ab"]
        await until(lambda: model.calls)
        requests[0].cancel()
        model.may.set()
        assert await requests[1] == ["B"]
        assert await made.answers(["c"]) == ["C"]

    run(scenario)


def test_what_is_called_is_counted():
    sizes = []

    async def scenario(made, _):
        await made.answers(list("abcdef"))

    run(scenario, observe=sizes.append)
    assert sizes == [4, 2]


def test_stop_cancels_what_has_no_answer():
    async def scenario(made, model):
        model.may.clear()
        running = asyncio.create_task(made.answers(["a"]))
        await until(lambda: model.calls)
        waits = asyncio.create_task(made.answers(["b"]))
        await asyncio.sleep(0)
        stopping = asyncio.create_task(made.stop())
        for task in (waits, running):
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 10)
        model.may.set()
        await stopping

    run(scenario, max_delay=0)
