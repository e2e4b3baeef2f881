// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/error.h"

#include "core/gpu/cuda_on_cpu.h"

namespace tfx::core::gpu {
namespace {

#ifdef __CUDACC__
constexpr int kCompilerVersion = __CUDACC_VER_MAJOR__ * 1000 + __CUDACC_VER_MINOR__ * 10;
#else
constexpr int kCompilerVersion = 13000;  // for tests
#endif

int Attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  return cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess ? value : 0;
}

}  // namespace

DeviceAndCode LookAtDevice() {
  DeviceAndCode found = {kCompilerVersion, TFX_GPU_CODE, 0, 0, 0};
  if (cudaDriverGetVersion(&found.driver_version) != cudaSuccess) found.driver_version = 0;
  found.major = Attribute(cudaDevAttrComputeCapabilityMajor);
  found.minor = Attribute(cudaDevAttrComputeCapabilityMinor);
  return found;
}

}  // namespace tfx::core::gpu
