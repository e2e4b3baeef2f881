# SPDX-License-Identifier: Apache-2.0
"""The peer of `steps.py`: PyTorch's full softmax, eager, fused Adam, the same shape. Needs a GPU.

python benchmarks/gpu/torch_softmax.py
"""

from __future__ import annotations

import time

import torch

CLASSES, WIDTH, BATCH = 1_000_000, 256, 1024


def measure(name: str, tf32: bool, bfloat16: bool, steps: int = 10) -> None:
    """Prints milliseconds a step and the peak of the memory."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.manual_seed(0)
    weight = torch.randn(CLASSES, WIDTH, device="cuda").mul_(0.01).requires_grad_()
    bias = torch.zeros(CLASSES, device="cuda", requires_grad=True)
    trunk = torch.nn.Linear(WIDTH, WIDTH, device="cuda")
    optimizer = torch.optim.Adam([weight, bias, *trunk.parameters()], 1e-3, fused=True)
    features = torch.randn(BATCH, WIDTH, device="cuda")
    labels = torch.randint(0, CLASSES, (BATCH,), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=bfloat16):
            logits = trunk(features) @ weight.T + bias
            loss = torch.nn.functional.cross_entropy(logits.float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    milliseconds = (time.perf_counter() - start) / steps * 1e3
    peak = torch.cuda.max_memory_allocated() / 2**30
    print(f"{name}: {milliseconds:.2f} ms a step, at most {peak:.1f} GiB", flush=True)
    torch.cuda.empty_cache()


if __name__ == "__main__":
    measure("float32", tf32=False, bfloat16=False)
    measure("TF32", tf32=True, bfloat16=False)
    measure("products in bfloat16", tf32=True, bfloat16=True)
