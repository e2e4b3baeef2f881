// SPDX-License-Identifier: Apache-2.0

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "kernels/gpu_op.h"

namespace tfx {
namespace {

using core::gpu::DeviceAndCode;
using core::gpu::Error;
using core::gpu::ErrorKind;

constexpr char kIsExplained[] = "tfx_largeout/explained";  // a payload

constexpr char kMemoryAdvice[] =
    "Take fewer examples, labels or candidates a step, or leave more of the GPU's memory free "
    "(tf.config.set_logical_device_configuration: CUDA and cuBLAS need some beside TensorFlow's).";
constexpr char kUnchanged[] = "No variable has been changed.";
constexpr char kChanged[] =
    "Variables that the op changes may have been changed in part: go on from a checkpoint.";

// Converts CUDA's version number, such as 12050, to text.
std::string Version(int version) {
  return version == 0 ? "unknown" : absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// NVIDIA's table of the oldest driver for each major version.
int OldestDriver(int cuda_version) { return cuda_version / 1000 >= 13 ? 580 : 525; }

std::string OldDriver(const DeviceAndCode& found, const char* text) {
  return absl::StrCat("the driver must know CUDA ", found.compiler_version / 1000,
                      ", for which the GPU kernels were compiled; got one for CUDA ",
                      Version(found.driver_version), " (", text, "): take driver ",
                      OldestDriver(found.compiler_version),
                      " or newer, reinstall with an older nvcc on the PATH, or set "
                      "TFX_LARGEOUT_GPU_KERNELS=0");
}

std::string NoCode(const DeviceAndCode& found, const char* text) {
  return absl::StrCat("the GPU kernels must have code for the GPU; got one of compute capability ",
                      found.major, ".", found.minor, ", and code for ", found.code_for, " (", text,
                      "): reinstall with the environment variable CUDAARCHS=", found.major,
                      found.minor, ", or set TFX_LARGEOUT_GPU_KERNELS=0");
}

absl::Status ExplainedMemory(const char* text, const char* outcome) {
  absl::Status status = absl::ResourceExhaustedError(absl::StrCat(
      "the GPU must have memory for the op; got: ", text, ". ", outcome, " ", kMemoryAdvice));
  status.SetPayload(kIsExplained, absl::Cord());
  return status;
}

bool IsOlder(const DeviceAndCode& found) {
  return found.driver_version != 0 && found.driver_version / 1000 < found.compiler_version / 1000;
}

}  // namespace

absl::Status StatusOf(const Error& error) {
  if (error.ok()) return absl::OkStatus();
  const char* outcome = error.may_have_changed ? kChanged : kUnchanged;
  if (error.kind == ErrorKind::kMemory) return ExplainedMemory(error.text, outcome);
  if (error.kind == ErrorKind::kOther) {
    return absl::InternalError(absl::StrCat(
        "work for the GPU must begin and end without errors; got: ", error.text,
        ". It may be of this op or an earlier one, and variables on the GPU may have been changed "
        "in part: start the process again, from a checkpoint."));
  }
  const DeviceAndCode found = core::gpu::LookAtDevice();
  const bool is_old = error.kind == ErrorKind::kOldDriver || IsOlder(found);
  return absl::FailedPreconditionError(
      absl::StrCat((is_old ? OldDriver : NoCode)(found, error.text), ". ", outcome));
}

absl::Status Explained(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status) || status.GetPayload(kIsExplained).has_value()) {
    return status;
  }
  return ExplainedMemory(std::string(status.message()).c_str(), kUnchanged);
}

}  // namespace tfx
