# SPDX-License-Identifier: Apache-2.0
"""Processes and their network in a simulated time: the seed determines all random events.

A process is a thread; only one runs at a time, until it sends something, waits, or uses the disk.
There the simulation may stop or kill it.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow

from tfx_largeout.distribute.workers import ALONE, Workers, set_current

HEARTBEAT, STEP_TIMEOUT = 30.0, 60.0  # seconds: the limits of `connect`
_REFUSED_BY_GATHER = (tensorflow.bfloat16, tensorflow.bool)
_Unavailable, _Late = tensorflow.errors.UnavailableError, tensorflow.errors.DeadlineExceededError
_Invalid = tensorflow.errors.InvalidArgumentError


class Killed(BaseException):
    """The process has been killed: its further actions have no effect."""


class Violation(BaseException):
    """An invariant is violated."""


class World:
    """The clock, the events, and the network.

    Attributes:
        trace: The events so far: time, process, and kind.
        loss: The share of messages that are lost and sent again.
        latency: The mean seconds of a message.
        heartbeat: Seconds without a heartbeat until the others know.
        step_timeout: Seconds that a collective waits.
        faults: The number of faults since this start.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now, self.loss, self.latency = 0.0, 0.0, 0.001
        self.heartbeat, self.step_timeout = HEARTBEAT, STEP_TIMEOUT
        self.trace: list[tuple[float, Any, str]] = []
        self.running: Process | None = None
        self.violation: BaseException | None = None
        self.faults = 0
        self.ended: Callable[[Process], None] = lambda process: None
        self._events: list[Any] = []
        self._numbers = itertools.count()
        self._parted: tuple[frozenset[int], float] = (frozenset(), 0.0)
        self.back = threading.Lock()
        self.back.acquire()

    def say(self, who: Any, what: str) -> None:
        self.trace.append((self.now, who, what))

    def after(self, delay: float, action: Callable[[], None]) -> None:
        self.at(self.now + delay, action)

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), action))

    def run(self) -> None:
        """Runs all events; raises a `Violation`, or an error of the simulation itself."""
        while self._events and self.violation is None:
            self.now, _, action = heapq.heappop(self._events)
            action()
        if self.violation is not None:
            raise self.violation

    def end(self, processes: list[Process]) -> None:
        """Ends the threads of running processes; this process is alone again."""
        self.ended = lambda process: None
        for process in processes:
            process.stopped_until = 0.0
            process.kill()
        set_current(ALONE)

    def part(self, ranks: frozenset[int], seconds: float) -> None:
        """Parts some workers from the others; none hears of the others for so long."""
        self._parted = (ranks, self.now + seconds)

    def are_parted(self, one: int, other: int) -> float:
        """Returns for how many seconds two workers can't hear of each other, 0 if they can."""
        ranks, end = self._parted
        return max(end - self.now, 0.0) if (one in ranks) != (other in ranks) else 0.0

    def send(self, source: Process, target: Process, key: Any, x: np.ndarray) -> None:
        delay, again = self.random.expovariate(1 / self.latency), 0.2
        while self.random.random() < self.loss:
            delay, again = delay + again, 2 * again
        source.sent_until = max(source.sent_until, self.now + delay)

        def arrive() -> None:
            parted = self.are_parted(source.rank, target.rank)
            if parted:
                self.after(parted + self.random.random(), arrive)
            elif not (source.killed and self.random.random() < 0.5):  # else it was not yet sent
                target.heard[key][source.rank] = x
                target.wake()

        self.after(delay, arrive)


class Process:
    """A worker of one start of a run. `run(process)` is its program.

    Attributes:
        at: The event at its n-th use of the network or the disk, by `("network", n)`.
        sent_until: When the last of its messages arrives, if no worker is parted then.
    """

    def __init__(self, world: World, rank: int, run: Callable[[Process], None]) -> None:
        self.world, self.rank = world, rank
        self.peers: list[Process] = [self]
        self.killed = self.over = self.started = False
        self.error: BaseException | None = None  # that ended it
        self.broken: BaseException | None = None  # its collectives fail from then on
        self.stopped_until = self.sent_until = 0.0
        self.waits_in = ""
        self.heard: dict[Any, dict[int, np.ndarray]] = collections.defaultdict(dict)
        self.at: dict[tuple[str, int], Callable[[Process], None]] = {}
        self.workers: Workers | None = None
        self._points: collections.Counter[str] = collections.Counter()
        self._uses: collections.Counter[Any] = collections.Counter()
        self._turn = 0
        self._go = threading.Lock()
        self._go.acquire()
        self._thread = threading.Thread(target=self._work, args=(run,), daemon=True)

    def start(self) -> None:
        if not self.killed:
            self.started = True
            self._thread.start()
            self._resume(self._turn)

    def _work(self, run: Callable[[Process], None]) -> None:
        self._go.acquire()
        try:
            if not self.killed:
                run(self)
        except Killed:
            pass
        except Exception as error:
            self.error = error
        except BaseException as violation:
            self.world.violation = violation
        self.over = True
        self.world.back.release()

    def _resume(self, turn: int) -> None:
        if turn != self._turn or self.over or not self.started:
            return
        if self.stopped_until > self.world.now and not self.killed:
            self.world.at(self.stopped_until, lambda: self._resume(turn))
            return
        self._turn += 1
        self.world.running = self
        set_current(self.workers)
        self._go.release()
        self.world.back.acquire()
        if self.over:
            self.end()

    def pause(self) -> None:
        """Runs others until this one is woken."""
        self.world.back.release()
        self._go.acquire()
        if self.killed:
            raise Killed

    def wake(self, when: float = 0.0) -> None:
        """Wakes it then, or now, unless something else wakes it earlier."""
        turn = self._turn
        self.world.at(max(when, self.world.now), lambda: self._resume(turn))

    def sleep(self, seconds: float) -> None:
        end = self.world.now + seconds
        while self.world.now < end:
            self.wake(end)
            self.pause()

    def point(self, kind: str, what: str) -> None:
        """A place where something may happen to the process, and others may run.

        Delivers an event before the process continues.
        """
        if self.killed:
            raise Killed
        self._points[kind] += 1
        self.world.say(self.rank, what)
        happens = self.at.get((kind, self._points[kind]))
        if happens is not None:
            happens(self)
        self.sleep(self.world.random.expovariate(1000.0))

    def kill(self) -> None:
        """Ends it, as SIGKILL does. For events: a process can't call it."""
        if not self.killed and not self.over:
            self.world.say(self.rank, "KILLED")
            self.killed = True
            if self.started:
                self._resume(self._turn)
            else:
                self.over = True
                self.end()

    def stop(self, seconds: float) -> None:
        """As SIGSTOP; after the time limit of heartbeats the others know."""
        self.world.say(self.rank, f"STOPPED for {seconds:.1f} s")
        self.stopped_until = self.world.now + seconds
        if seconds > self.world.heartbeat:
            self.world.after(
                self.world.heartbeat, lambda: self.lost(f"worker {self.rank} has no heartbeat")
            )

    def lost(self, why: str) -> None:
        if not self.over:
            self.tell_others(_Unavailable(None, None, why), 1.0)
            self.break_off(_Unavailable(None, None, why))

    def tell_others(self, error: BaseException, most: float) -> None:
        """Has the others hear of it; worker 0, while it waits in a sum, by the heartbeat alone."""
        for peer in self.peers:
            if peer is not self:
                in_sum = peer.rank == 0 and peer.waits_in.startswith("sum/")
                delay = self.world.random.uniform(0, self.world.heartbeat if in_sum else most)
                self.world.after(delay, lambda peer=peer: peer.break_off(error))

    def break_off(self, error: BaseException) -> None:
        """Has the collective that runs, and all later ones, end with an error."""
        if not self.over and self.broken is None:
            self.broken = error
            self.wake()

    def end(self) -> None:
        """It has ended: its sockets are closed, at once or, if all went well, after at least two.

        A socket that is closed after a normal end still delivers all that was sent before.
        """
        went_well = self.error is None and not self.killed
        delay = max(2.0, self.sent_until - self.world.now) if went_well else 0.0
        self.world.say(self.rank, "ended" if went_well else f"ended with {self.error!r:.200}")
        closed = _Unavailable(None, None, f"worker {self.rank}: Socket closed")
        self.world.after(delay, lambda: self.tell_others(closed, 1.0))
        self.world.ended(self)

    def collective(
        self, name: str, x: Any, parts: list[np.ndarray], peers: list[Process]
    ) -> list[np.ndarray]:
        """Sends each of some workers its part; returns the parts sent to this one, by rank."""
        key = (name, tuple(peer.rank for peer in peers), x.dtype.name, tuple(x.shape))
        self.point("network", f"{name} {list(x.shape)}")
        if self.broken is not None:
            raise self.broken
        if 0 in x.shape:
            raise _Invalid(None, None, f"{name!r} must send something")
        key = (*key, self._uses[key])
        self._uses[key[:-1]] += 1
        for peer, part in zip(peers, parts, strict=True):
            if peer is not self:
                self.world.send(self, peer, key, part)
        self.waits_in, late = name, self.world.now + self.world.step_timeout
        heard = self.heard[key]
        while len(heard) < len(peers) - 1:
            if self.broken is not None:
                raise self.broken
            if self.world.now >= late:
                if not self.world.faults:
                    raise Violation(f"worker {self.rank} waits for ever in {key}")
                self.broken = _Late(None, None, "a collective has waited for too long")
                raise self.broken
            self.wake(late)
            self.pause()
        self.waits_in = ""
        heard[self.rank] = parts[peers.index(self)]
        del self.heard[key]
        return [heard[peer.rank] for peer in peers]


class SimulatedWorkers(Workers):
    """Workers of a simulated network; `make` creates tensors, such as NumPy's.

    Errors are as in TensorFlow's collectives: `behaviours.py` has the list.
    """

    def __init__(
        self, process: Process, make: Callable[[np.ndarray], Any], ranks: slice = slice(None)
    ) -> None:
        self._process, self._make, self._peers = process, make, process.peers[ranks]
        super().__init__(len(self._peers), self._peers.index(process))

    def some(self, ranks: range) -> SimulatedWorkers:
        chosen = slice(ranks.start, ranks.stop, ranks.step)
        return SimulatedWorkers(self._process, self._make, chosen)

    def gather(self, x: Any, name: str) -> Any:
        if self.size > 1 and x.dtype in _REFUSED_BY_GATHER:
            raise _Invalid(None, None, f"{x.dtype} in {name!r}")
        return self._run("gather", name, x, [x.numpy()] * self.size, np.stack)

    def add_up(self, x: Any, name: str) -> Any:
        if self.size > 1 and x.dtype == tensorflow.bool:
            raise _Invalid(None, None, f"{x.dtype} in {name!r}")
        return self._run("sum", name, x, [x.numpy()] * self.size, _sum)

    def exchange(self, x: Any, name: str) -> Any:
        if x.shape.rank == 0 or x.shape[0] != self.size:
            self._process.broken = _Invalid(None, None, f"{x.shape} in {name!r}")
            raise self._process.broken
        return self._run("to", name, x, list(x.numpy()), np.stack)

    def _run(self, kind: str, name: str, x: Any, parts: Any, merge: Any) -> Any:
        if self.size > 1:  # else a group of one worker, which sends nothing
            parts = self._process.collective(f"{kind}/{name}", x, parts, self._peers)
        return self._make(merge(parts))


def _sum(parts: list[np.ndarray]) -> np.ndarray:
    """Adds up by rank, so that all workers get the same bits."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
