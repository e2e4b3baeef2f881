// SPDX-License-Identifier: Apache-2.0
//
// A .cu.cc includes this instead of CUDA's headers. Under nvcc it includes CUDA; under a plain C++
// compiler it runs kernels on the processor, to test their results and barriers.
//
// On the processor the threads of a block are fibers of one thread, and blocks run one after
// another. Between two barriers a fiber runs as far as it can before the next begins, in falling
// order in every other block, so that most missing barriers change results. Shared memory starts
// with garbage. A barrier that some threads never reach ends the program with a message.

#ifndef TFX_LARGEOUT_CORE_GPU_CUDA_ON_CPU_H_
#define TFX_LARGEOUT_CORE_GPU_CUDA_ON_CPU_H_

#ifdef __CUDACC__

#include <cuda_runtime.h>

#define TFX_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  do {                                                             \
    if (cudaPeekAtLastError() == cudaSuccess) {                    \
      kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__);  \
    }                                                              \
  } while (false)
#define TFX_SHARED_MEMORY(name) extern __shared__ __align__(16) unsigned char name[]

#else

#include <math.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>

#define __global__ static
#define __device__
#define __launch_bounds__(...)
#define TFX_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  (static_cast<void>(stream),                                      \
   ::tfx::core::gpu::on_cpu::Launch(grid, block, shared_bytes, [&] { kernel(__VA_ARGS__); }))
#define TFX_SHARED_MEMORY(name) unsigned char* name = ::tfx::core::gpu::on_cpu::SharedMemory()

struct dim3 {
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  unsigned x, y, z;
};

using cudaStream_t = struct CUstream_st*;
using cudaError_t = int;
constexpr cudaError_t cudaSuccess = 0;
constexpr cudaError_t cudaErrorMemoryAllocation = 2;
constexpr cudaError_t cudaErrorInsufficientDriver = 35;
constexpr cudaError_t cudaErrorCallRequiresNewerDriver = 36;
constexpr cudaError_t cudaErrorInvalidDeviceFunction = 98;
constexpr cudaError_t cudaErrorInvalidKernelImage = 200;
constexpr cudaError_t cudaErrorNoKernelImageForDevice = 209;
constexpr cudaError_t cudaErrorInvalidPtx = 218;
constexpr cudaError_t cudaErrorJitCompilerNotFound = 221;
constexpr cudaError_t cudaErrorUnsupportedPtxVersion = 222;
inline thread_local cudaError_t last_cuda_error = cudaSuccess;  // set by failures, and by tests
inline cudaError_t cudaGetLastError() { return std::exchange(last_cuda_error, cudaSuccess); }
inline const char* cudaGetErrorString(cudaError_t) { return "an error of a test"; }

inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace tfx::core::gpu::on_cpu {

constexpr unsigned kWarp = 32;

// The launches that fail in tests: all from number `first` on, or only that one. Only one thread
// may launch.
struct Failure {
  cudaError_t error = cudaSuccess;
  int first = 0;
  bool only_one = false;
  int driver_version = 13000;  // of the simulated driver
};
extern Failure failure;

void Launch(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& kernel);
unsigned char* SharedMemory();
void WaitForBlock();
void WaitForWarp();
// Returns the bits passed by the given lane of the warp.
uint64_t Shuffle(uint64_t bits, unsigned lane);
// Returns the lanes of the warp, as bits, that passed the same value.
unsigned Match(uint64_t bits);
// Returns the lanes of the warp, as bits, that passed true.
unsigned Ballot(bool is_set);
unsigned Lane();

template <typename T>
T ShuffleValue(T value, unsigned lane) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = Shuffle(bits, lane);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace tfx::core::gpu::on_cpu

enum cudaDeviceAttr {
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76
};
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  return *value = attribute == cudaDevAttrComputeCapabilityMajor ? 7 : 5, cudaSuccess;
}
inline cudaError_t cudaDriverGetVersion(int* version) {
  return *version = ::tfx::core::gpu::on_cpu::failure.driver_version, cudaSuccess;
}

inline void __syncthreads() { ::tfx::core::gpu::on_cpu::WaitForBlock(); }
inline void __syncwarp() { ::tfx::core::gpu::on_cpu::WaitForWarp(); }

template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  namespace on_cpu = ::tfx::core::gpu::on_cpu;
  return on_cpu::ShuffleValue(value, on_cpu::Lane() ^ static_cast<unsigned>(mask));
}

// The type on the device; elsewhere it may be another type of the same size.
template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  return ::tfx::core::gpu::on_cpu::ShuffleValue(value, static_cast<unsigned>(lane));
}

template <typename T>
T __shfl_up_sync(unsigned, T value, unsigned delta) {
  namespace on_cpu = ::tfx::core::gpu::on_cpu;
  const unsigned lane = on_cpu::Lane();
  return on_cpu::ShuffleValue(value, lane < delta ? lane : lane - delta);
}

inline unsigned __match_any_sync(unsigned, unsigned value) {
  return ::tfx::core::gpu::on_cpu::Match(value);
}

inline unsigned __ballot_sync(unsigned, int predicate) {
  return ::tfx::core::gpu::on_cpu::Ballot(predicate != 0);
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(unsigned bits) { return __builtin_ffs(static_cast<int>(bits)); }

template <typename T>
T atomicAdd(T* sum, T value) {
  T before;
  std::memcpy(&before, sum, sizeof before);
  const T after = before + value;
  std::memcpy(sum, &after, sizeof after);
  return before;
}

template <typename T>
T atomicMin(T* least, T value) {
  const T before = *least;
  if (value < before) *least = value;
  return before;
}

template <typename T>
T atomicCAS(T* value, T expected, T next) {
  const T before = *value;
  if (before == expected) *value = next;
  return before;
}

template <typename T>
T atomicExch(T* value, T next) {
  return std::exchange(*value, next);
}

inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

#endif  // __CUDACC__

#endif  // TFX_LARGEOUT_CORE_GPU_CUDA_ON_CPU_H_
