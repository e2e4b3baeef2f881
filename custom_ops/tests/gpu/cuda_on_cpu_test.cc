// SPDX-License-Identifier: Apache-2.0
//
// That kernels which run on the processor show the mistakes they are run for.

#include "core/gpu/cuda_on_cpu.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <vector>

#include "core/gpu/block_reduction.h"
#include "tests/expect.h"

namespace tfx::core::gpu {
namespace {

// Each thread writes the value that its neighbor reads.
__global__ void Mirror(int* out, bool waits) {
  TFX_SHARED_MEMORY(memory);
  int* values = reinterpret_cast<int*>(memory);
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (waits) __syncthreads();
  out[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}

std::vector<int> Mirrored(bool waits) {
  std::vector<int> out(kThreads);
  TFX_LAUNCH(Mirror, dim3(1), dim3(kThreads), kThreads * sizeof(int), nullptr, out.data(), waits);
  return out;
}

TEST(ABarrierThatIsMissingShows) {
  std::vector<int> expected(kThreads);
  for (int i = 0; i < kThreads; ++i) expected[i] = kThreads - 1 - i;
  EXPECT(Mirrored(true) == expected);
  EXPECT(Mirrored(false) != expected);
}

__global__ void SumOfIndices(int64_t* sums) {
  TFX_SHARED_MEMORY(memory);
  const int64_t sum = OfBlock(int64_t{threadIdx.x} + blockIdx.x + blockIdx.y, Sum(), memory);
  if (threadIdx.x == 0) sums[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

TEST(BlocksAndWarpsAreReduced) {
  std::vector<int64_t> sums(6);
  TFX_LAUNCH(SumOfIndices, dim3(3, 2), dim3(kThreads), 8 * kWarps, nullptr, sums.data());
  const int64_t of_threads = kThreads * (kThreads - 1) / 2;
  for (int64_t y = 0; y < 2; ++y) {
    for (int64_t x = 0; x < 3; ++x) EXPECT(sums[y * 3 + x] == of_threads + kThreads * (x + y));
  }
}

__global__ void SumsBefore(uint32_t* before, uint32_t* totals) {
  TFX_SHARED_MEMORY(memory);
  before[threadIdx.x] =
      SumBefore(threadIdx.x % 7, reinterpret_cast<uint32_t*>(memory), totals + threadIdx.x);
}

TEST(SumsOfThreadsBefore) {
  std::vector<uint32_t> before(kThreads), totals(kThreads);
  TFX_LAUNCH(SumsBefore, dim3(1), dim3(kThreads), 8 * kWarps, nullptr, before.data(),
             totals.data());
  uint32_t sum = 0;
  for (uint32_t i = 0; i < kThreads; sum += i % 7, ++i) EXPECT(before[i] == sum);
  for (uint32_t total : totals) EXPECT(total == sum);
}

// Lanes that bring the same number, and a count of the lanes so far with a barrier between.
__global__ void Matches(unsigned* lanes, unsigned* thirds, unsigned* counts, bool waits) {
  TFX_SHARED_MEMORY(memory);
  auto* count = reinterpret_cast<unsigned*>(memory);
  const unsigned lane = threadIdx.x % kWarpSize;
  lanes[threadIdx.x] = __match_any_sync(~0u, lane % 3);
  thirds[threadIdx.x] = __ballot_sync(~0u, lane % 3 == 1);
  if (lane == 0) *count = 0;
  __syncwarp();
  const unsigned before = *count;
  if (waits) __syncwarp();
  *count = before + 1;
  __syncwarp();
  counts[threadIdx.x] = *count;
}

TEST(LanesThatMatch) {
  std::vector<unsigned> lanes(kWarpSize), thirds(kWarpSize), counts(kWarpSize);
  for (bool waits : {true, false}) {
    TFX_LAUNCH(Matches, dim3(1), dim3(kWarpSize), sizeof(unsigned), nullptr, lanes.data(),
               thirds.data(), counts.data(), waits);
    for (unsigned i = 0; i < kWarpSize; ++i) {
      EXPECT(lanes[i] == 0x49249249u << i % 3);
      EXPECT(thirds[i] == 0x49249249u << 1);
      EXPECT((counts[i] == 1) == waits);
    }
  }
}

__global__ void SomeNeverCome() {
  if (threadIdx.x != 5) __syncthreads();
}

TEST(ThreadsThatWaitForeverEndTheProgram) {
  const pid_t child = fork();
  if (child == 0) {
    std::fclose(stderr);
    TFX_LAUNCH(SomeNeverCome, dim3(1), dim3(32), 0, nullptr);
    _exit(0);
  }
  int status = 0;
  EXPECT(waitpid(child, &status, 0) == child);
  EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

}  // namespace
}  // namespace tfx::core::gpu
