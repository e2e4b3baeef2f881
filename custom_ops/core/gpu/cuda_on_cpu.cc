// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/cuda_on_cpu.h"

#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace tfx::core::gpu::on_cpu {
namespace {

constexpr size_t kStackBytes = 64 * 1024;
constexpr unsigned char kGarbage = 0xA5;

// A barrier: the last thread to arrive releases all.
struct Barrier {
  unsigned arrived = 0;
  uint64_t rounds = 0;
};

struct Fiber {
  ucontext_t context;
  char* stack;
  bool has_ended = false;
};

struct Warp {
  Barrier barrier;
  uint64_t brought[kWarp];
};

class Block {
 public:
  Block(dim3 size, size_t shared_bytes, const std::function<void()>& kernel)
      : size_(size),
        kernel_(kernel),
        fibers_(size_t{size.x} * size.y * size.z),
        warps_((fibers_.size() + kWarp - 1) / kWarp),
        shared_(shared_bytes + 1) {
    thread_local std::vector<std::unique_ptr<char[]>> stacks;  // of the largest block so far
    for (size_t i = 0; i < fibers_.size(); ++i) {
      if (i == stacks.size()) stacks.emplace_back(new char[kStackBytes]);
      fibers_[i].stack = stacks[i].get();
    }
  }

  void Run(bool falling) {
    std::fill(shared_.begin(), shared_.end(), kGarbage);
    num_running_ = static_cast<unsigned>(fibers_.size());
    for (Fiber& fiber : fibers_) Begin(&fiber);
    while (num_running_ > 0) {
      has_progress_ = false;
      for (size_t i = 0; i < fibers_.size(); ++i) Resume(falling ? fibers_.size() - 1 - i : i);
      if (!has_progress_) Fail();
    }
  }

  unsigned char* shared() { return shared_.data(); }
  unsigned lane() const { return static_cast<unsigned>(current_ % kWarp); }

  void WaitForAll() { Wait(&barrier_, static_cast<unsigned>(fibers_.size())); }

  void WaitForWarp() { WaitForWarp(&warps_[current_ / kWarp]); }

  // Returns the result of look(bits of the lanes, number of lanes).
  template <typename Look>
  auto Exchange(uint64_t bits, const Look& look) {
    Warp& warp = warps_[current_ / kWarp];
    warp.brought[current_ % kWarp] = bits;
    WaitForWarp(&warp);
    const auto got = look(warp.brought, LanesOfWarp());
    WaitForWarp(&warp);  // no thread brings the next value before all have this one
    return got;
  }

  void EndOfFiber() {
    fibers_[current_].has_ended = true;
    --num_running_;
    swapcontext(&fibers_[current_].context, &scheduler_);
  }

  void RunKernel() {
    has_progress_ = true;
    kernel_();
  }

 private:
  void Begin(Fiber* fiber);

  void Resume(size_t index) {
    if (fibers_[index].has_ended) return;
    current_ = index;
    const auto i = static_cast<unsigned>(index);
    threadIdx = dim3(i % size_.x, i / size_.x % size_.y, i / (size_.x * size_.y));
    swapcontext(&scheduler_, &fibers_[index].context);
  }

  unsigned LanesOfWarp() const {
    const size_t first = current_ / kWarp * kWarp;
    return static_cast<unsigned>(std::min<size_t>(kWarp, fibers_.size() - first));
  }

  void WaitForWarp(Warp* warp) { Wait(&warp->barrier, LanesOfWarp()); }

  void Wait(Barrier* barrier, unsigned size) {
    const uint64_t round = barrier->rounds;
    if (++barrier->arrived == size) {
      barrier->arrived = 0;
      ++barrier->rounds;
    }
    while (barrier->rounds == round) swapcontext(&fibers_[current_].context, &scheduler_);
    has_progress_ = true;
  }

  [[noreturn]] static void Fail() {
    std::fprintf(stderr, "cuda_on_cpu: threads of a block wait for some that never come\n");
    std::abort();
  }

  const dim3 size_;
  const std::function<void()>& kernel_;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<unsigned char> shared_;
  Barrier barrier_;
  ucontext_t scheduler_;
  size_t current_ = 0;
  unsigned num_running_ = 0;
  bool has_progress_ = false;
};

thread_local Block* block_of_this_thread = nullptr;

// Whether the launch should fail.
bool Fails() {
  if (failure.error == cudaSuccess || failure.first-- > 0) return false;
  last_cuda_error = failure.error;
  if (failure.only_one) failure.error = cudaSuccess;
  return true;
}

void FiberMain() {
  block_of_this_thread->RunKernel();
  block_of_this_thread->EndOfFiber();
}

void Block::Begin(Fiber* fiber) {
  fiber->has_ended = false;
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, FiberMain, 0);
}

}  // namespace

Failure failure;

void Launch(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& kernel) {
  if (last_cuda_error != cudaSuccess || Fails()) return;
  Block fibers(block, shared_bytes, kernel);
  block_of_this_thread = &fibers;
  gridDim = grid;
  blockDim = block;
  bool falling = false;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x, falling = !falling) {
        blockIdx = dim3(x, y, z);
        fibers.Run(falling);
      }
    }
  }
  block_of_this_thread = nullptr;
}

unsigned char* SharedMemory() { return block_of_this_thread->shared(); }
void WaitForBlock() { block_of_this_thread->WaitForAll(); }
void WaitForWarp() { block_of_this_thread->WaitForWarp(); }
unsigned Lane() { return block_of_this_thread->lane(); }

uint64_t Shuffle(uint64_t bits, unsigned lane) {
  return block_of_this_thread->Exchange(
      bits, [=](const uint64_t* brought, unsigned) { return brought[lane % kWarp]; });
}

unsigned Match(uint64_t bits) {
  return block_of_this_thread->Exchange(bits, [=](const uint64_t* brought, unsigned num_lanes) {
    unsigned same = 0;
    for (unsigned lane = 0; lane < num_lanes; ++lane) {
      if (brought[lane] == bits) same |= 1u << lane;
    }
    return same;
  });
}

unsigned Ballot(bool is_set) {
  return block_of_this_thread->Exchange(is_set, [](const uint64_t* brought, unsigned num_lanes) {
    unsigned set = 0;
    for (unsigned lane = 0; lane < num_lanes; ++lane) {
      set |= static_cast<unsigned>(brought[lane]) << lane;
    }
    return set;
  });
}

}  // namespace tfx::core::gpu::on_cpu

// For tests in Python, of the library with the ops.
extern "C" __attribute__((visibility("default"))) void tfx_fail_launches(int error, int first,
                                                                         bool only_one,
                                                                         int driver_version) {
  tfx::core::gpu::on_cpu::failure = {error, first, only_one, driver_version};
}
