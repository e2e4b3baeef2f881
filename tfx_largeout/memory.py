# SPDX-License-Identifier: Apache-2.0
"""Memory in bytes: of a weight before it is created, of a step, and available memory."""

from __future__ import annotations

import math
import os
import resource
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

_TOO_LITTLE_TO_ASK = 2**26
_CGROUPS, _PROC = Path("/sys/fs/cgroup"), Path("/proc")


class Weight(NamedTuple):
    """A weight, which may not exist yet.

    Attributes:
        shape: Its shape.
        dtype: The name of its dtype.
        part: `"weights"`, `"optimizer"` (state of a head's optimizer) or `"index"` (of an index, a
            tree or a sampler).
        is_trained: Whether the model's optimizer has state for it, and gets its gradient.
    """

    shape: tuple[int, ...]
    dtype: str
    part: str = "weights"
    is_trained: bool = False

    @property
    def num_bytes(self) -> int:
        """The size in bytes."""
        return math.prod(self.shape) * tf.as_dtype(self.dtype).size

    @classmethod
    def of(cls, variable: Any, part: str = "weights") -> Weight:
        """Returns the `Weight` of a Keras variable."""
        dtype = tf.as_dtype(variable.dtype).name
        return cls(tuple(variable.shape), dtype, part, bool(variable.trainable))


class StepSize(NamedTuple):
    """The sizes of a training step.

    Attributes:
        examples: N, the number of vectors h for a head: B T for `[B, T, D]`. Of all workers.
        labels: K, labels per example.
        takes_slices: Whether the model's optimizer can use a gradient of some rows without tensors
            of the size of the whole weight.
        temporaries: The number of temporary tensors of a weight's size in its step.
        adds_up: Whether the model's optimizer adds up slices, so that a tied head gives it some.
    """

    examples: int
    labels: int = 1
    takes_slices: bool = False
    temporaries: int = 0
    adds_up: bool = False

    @property
    def threads(self) -> int:
        """T, the threads of TensorFlow's ops."""
        chosen = tf.config.threading.get_intra_op_parallelism_threads()
        return chosen or len(os.sched_getaffinity(0))


class StepMemory(NamedTuple):
    """Temporary memory of a layer, in bytes, besides its weights.

    Attributes:
        gradients: Of a training step: gradients of whole weights.
        activations: Of a training step: tensors of examples, such as logits, their gradients,
            slices of rows, and other temporaries.
        workspace: Of a training step: buffers of the custom ops, kept between steps.
        evaluation: Of `evaluate` or `predict`.
        building: Of `build`; TensorFlow's allocator keeps it.
    """

    gradients: int = 0
    activations: int = 0
    workspace: int = 0
    evaluation: int = 0
    building: int = 0

    def with_optimizer(self, step: StepSize, weights: list[Weight]) -> StepMemory:
        """Adds temporaries of the optimizer for the largest weight; there are none for slices.

        They exist only after activations are freed.
        """
        trained = [weight.num_bytes for weight in weights if weight.is_trained]
        if not self.gradients or not trained:
            return self
        made = step.temporaries * max(trained)
        return self._replace(activations=max(self.activations, made))

    @property
    def at_once(self) -> int:
        """The peak: the allocator keeps the memory of building."""
        for_a_while = self.gradients + max(self.activations, self.building)
        return self.workspace + max(for_a_while, self.evaluation)


def sum_of(weights: list[Weight], *parts: str) -> int:
    """Returns the bytes of weights of the given parts; without parts, of all."""
    return sum(weight.num_bytes for weight in weights if not parts or weight.part in parts)


def gradients_of(weights: list[Weight]) -> int:
    """Returns the bytes of dense gradients of the weights that the model's optimizer trains."""
    return sum(weight.num_bytes for weight in weights if weight.is_trained)


def available_bytes() -> int | None:
    """Returns the bytes that this process can still allocate; None if unknown.

    The minimum of the system's memory with swap, of the limits of its control groups, and of its
    limit of addresses (`ulimit -v`); plus memory that TensorFlow's allocator keeps unused.
    """
    limits = [_of_system(), _of_addresses(), *_of_cgroups()]
    known = [limit for limit in limits if limit is not None]
    return min(known) + _held_by_tensorflow() if known else None


def refuse_what_is_too_large(
    owner: str, weights: list[Weight], smaller: Callable[[int], list[str]]
) -> None:
    """Raises a MemoryError if weights need more than the available memory.

    Args:
        owner: The owner of the weights.
        weights: Weights that are about to be created.
        smaller: Returns smaller alternatives for the available bytes.
    """
    needed = sum_of(weights)
    available = _too_little_for(needed)
    if available is None:
        return
    sizes = {part: sum_of(weights, part) for part in ("weights", "optimizer", "index")}
    parts = ", ".join(f"{part} {text_of_bytes(size)}" for part, size in sizes.items() if size)
    raise MemoryError(
        f"{owner} must fit into memory, of which this process can have "
        f"{text_of_bytes(available)}; got {text_of_bytes(needed)} ({parts}). Smaller: "
        f"{'; '.join(smaller(available))}. See tlo.estimate_memory."
    )


def warn_of_what_is_too_large(
    owner: str, weights: list[Weight], step: StepMemory, smaller: Callable[[int], list[str]]
) -> None:
    """Warns if new weights fit into memory, but not together with a training step.

    Arguments as in `refuse_what_is_too_large`, and the step.
    """
    needed = sum_of(weights) + step.at_once
    available = _too_little_for(needed)
    if available is None:
        return
    parts = {"weights and state": sum_of(weights), **step._asdict()}
    there = ", ".join(f"{name} {text_of_bytes(size)}" for name, size in parts.items() if size)
    warnings.warn(
        f"{owner} may not fit into memory, of which this process can have "
        f"{text_of_bytes(available)}: it needs about {text_of_bytes(needed)} in a step ({there}). "
        f"Smaller: {'; '.join(smaller(available))}. See tlo.estimate_memory.",
        RuntimeWarning,
        stacklevel=4,
    )


def _too_little_for(needed: int) -> int | None:
    """Returns the available bytes if they are too few; else None."""
    available = None if needed < _TOO_LITTLE_TO_ASK or _is_on_gpu() else available_bytes()
    return None if available is None or needed <= available else available


def text_of_bytes(number: float) -> str:
    """Formats bytes such as `"1.50 GB"`, with powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number) < 999.5 or unit == "GB":
            break
        number /= 1000
    return f"{number:.0f} B" if unit == "B" else f"{number:,.3g} {unit}"


def _of_system() -> int | None:
    try:
        lines = (_PROC / "meminfo").read_text().splitlines()
    except OSError:
        return None
    fields = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return fields["MemAvailable"] + fields.get("SwapFree", 0)


def _of_addresses() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    used = int((_PROC / "self/statm").read_text().split()[0]) * resource.getpagesize()
    return max(limit - used, 0)


def _of_cgroups() -> Iterator[int]:
    """Yields the memory left in each control group of this process (both versions)."""
    try:
        lines = (_PROC / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, files = _CGROUPS, ("memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            root = _CGROUPS / "memory"
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        else:
            continue
        folder = root / path.lstrip("/")
        # In a container the path may exist only on the host; its root is the container's.
        for group in (folder, *folder.parents):
            left = _left_in(group, *files)
            if left is not None:
                yield left
            if group == root:
                break


def _left_in(group: Path, limit: str, usage: str, prefix: str) -> int | None:
    """Returns the memory left in a group; file pages count in its usage, but can be freed."""
    try:
        most, used = (group / limit).read_text().strip(), int((group / usage).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if most == "max" or int(most) >= 2**60:
        return None
    of_files = sum(int(stat.get(f"{prefix}{kind}_file", 0)) for kind in ("inactive", "active"))
    return max(int(most) - used + of_files, 0)


def _held_by_tensorflow() -> int:
    """Returns the memory that TensorFlow's CPU allocator keeps but does not use."""
    try:
        info = tf.config.experimental.get_memory_info("CPU:0")
    except (ValueError, RuntimeError):  # an allocator that keeps nothing
        return 0
    return info["peak"] - info["current"]


def _is_on_gpu() -> bool:
    """Whether new weights would be on a GPU, which has separate memory."""
    if not tf.config.list_logical_devices("GPU"):
        return False
    with tf.init_scope():
        return "GPU" in tf.zeros([]).device
