# SPDX-License-Identifier: Apache-2.0
"""Batcher: many requests, one call of the model."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

# The function that a batcher calls: model(texts, option) returns an answer per text.
Function = Callable[[Sequence[str], Any], Sequence[Any]]


class Full(Exception):
    """The queue of texts is full."""


class _Waiting(NamedTuple):
    text: str
    option: Hashable
    since: float
    answer: asyncio.Future[Any]


class Batcher:
    """Passes waiting texts to the model together, in a separate thread.

    A batch is started when it is full, or when its first text has waited for `max_delay`. While the
    model works, the next batch is collected. Texts with different options go in separate calls.

    Args:
        model: A function that answers texts.
        max_batch: The largest number of texts per call.
        max_delay: How long the first text waits for others, in seconds.
        max_waiting: The largest number of waiting texts.
        observe: Called with the number of texts of each call.
    """

    def __init__(
        self,
        model: Function,
        max_batch: int,
        max_delay: float,
        max_waiting: int,
        observe: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.model = model
        self.max_batch = max_batch
        self.max_delay = max_delay
        self.max_waiting = max_waiting
        self.observe = observe
        self._waiting: deque[_Waiting] = deque()
        self._any, self._full = asyncio.Event(), asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "model")
        self._task = asyncio.create_task(self._run())

    def waiting(self) -> int:
        """Returns the number of waiting texts."""
        return len(self._waiting)

    async def answers(self, texts: Sequence[str], option: Hashable = None) -> list[Any]:
        """Returns the model's answer to each text.

        Raises:
            Full: More than `max_waiting` texts would wait. None of these is added.
            Exception: The model's exception.
        """
        if len(self._waiting) + len(texts) > self.max_waiting:
            raise Full
        loop, now = asyncio.get_running_loop(), time.monotonic()
        waiting = [_Waiting(text, option, now, loop.create_future()) for text in texts]
        self._waiting.extend(waiting)
        self._tell()
        return await asyncio.gather(*(each.answer for each in waiting))

    async def stop(self) -> None:
        """Cancels texts without an answer, and ends the thread."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for each in self._waiting:
            each.answer.cancel()
        await asyncio.to_thread(self._thread.shutdown)

    def _tell(self) -> None:
        for event, least in ((self._any, 1), (self._full, self.max_batch)):
            event.set() if len(self._waiting) >= least else event.clear()

    async def _run(self) -> None:
        while True:
            batch = await self._next_batch()
            for option in dict.fromkeys(each.option for each in batch):
                await self._call(option, [each for each in batch if each.option == option])

    async def _next_batch(self) -> list[_Waiting]:
        await self._any.wait()
        left = self._waiting[0].since + self.max_delay - time.monotonic()
        if left > 0:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._full.wait(), left)
        size = min(len(self._waiting), self.max_batch)
        batch = [self._waiting.popleft() for _ in range(size)]
        self._tell()
        return batch

    async def _call(self, option: Hashable, batch: list[_Waiting]) -> None:
        loop, texts = asyncio.get_running_loop(), [each.text for each in batch]
        self.observe(len(texts))
        try:
            answers = await loop.run_in_executor(self._thread, self.model, texts, option)
            answered = list(zip(batch, answers, strict=True))
        except asyncio.CancelledError:
            for each in batch:
                each.answer.cancel()
            raise
        except Exception as error:  # passed to the clients; the next batch may succeed
            for each in batch:
                if not each.answer.done():
                    each.answer.set_exception(error)
            return
        for each, answer in answered:
            if not each.answer.done():  # done if the client has gone
                each.answer.set_result(answer)
