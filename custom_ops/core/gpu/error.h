// SPDX-License-Identifier: Apache-2.0
//
// Errors when work is started on a GPU.

#ifndef TFX_LARGEOUT_CORE_GPU_ERROR_H_
#define TFX_LARGEOUT_CORE_GPU_ERROR_H_

namespace tfx::core::gpu {

enum class ErrorKind {
  kNone,
  kMemory,     // the device is out of memory
  kNoCode,     // no kernels for this device and driver
  kOldDriver,  // the driver is older than the runtime
  kOther       // also an error of an earlier kernel: then the device's state is uncertain
};

struct [[nodiscard]] Error {
  bool ok() const { return kind == ErrorKind::kNone; }

  // The same, for a call that may have changed a part of its outputs.
  Error AfterChanges() const { return {kind, text, !ok()}; }

  ErrorKind kind = ErrorKind::kNone;
  const char* text = "";          // CUDA's or cuBLAS's
  bool may_have_changed = false;  // outputs of the call; otherwise they are unchanged
};

// The targets of the kernels, and the present device. Versions are CUDA's, such as 12050; 0:
// unknown.
struct DeviceAndCode {
  int compiler_version;  // of nvcc
  const char* code_for;  // as CMAKE_CUDA_ARCHITECTURES
  int driver_version;    // the newest version that the driver supports
  int major, minor;      // the compute capability
};
DeviceAndCode LookAtDevice();

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_ERROR_H_
