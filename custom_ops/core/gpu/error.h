// SPDX-License-Identifier: Apache-2.0
//
// What goes wrong when work is begun on a GPU.

#ifndef TFX_LARGEOUT_CORE_GPU_ERROR_H_
#define TFX_LARGEOUT_CORE_GPU_ERROR_H_

namespace tfx::core::gpu {

enum class ErrorKind {
  kNone,
  kMemory,     // the device has none left
  kNoCode,     // there are no kernels that this device and driver can run
  kOldDriver,  // the driver is older than the runtime
  kOther       // also what an earlier kernel did wrong: then nothing on the device is certain
};

struct [[nodiscard]] Error {
  bool ok() const { return kind == ErrorKind::kNone; }

  // The same, of a call that may have changed a part of what it changes.
  Error AfterChanges() const { return {kind, text, !ok()}; }

  ErrorKind kind = ErrorKind::kNone;
  const char* text = "";          // CUDA's or cuBLAS's
  bool may_have_changed = false;  // what the call changes; else it is as it was
};

// What the kernels were compiled for, and what is there. Versions are CUDA's, as 12050; 0: unknown.
struct DeviceAndCode {
  int compiler_version;  // of nvcc
  const char* code_for;  // as CMAKE_CUDA_ARCHITECTURES
  int driver_version;    // the newest that the driver knows
  int major, minor;      // the compute capability
};
DeviceAndCode LookAtDevice();

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_ERROR_H_
