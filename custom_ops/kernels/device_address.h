// SPDX-License-Identifier: Apache-2.0
//
// An address on the op's device; TensorFlow 2.21 renamed the type.

#ifndef TFX_LARGEOUT_KERNELS_DEVICE_ADDRESS_H_
#define TFX_LARGEOUT_KERNELS_DEVICE_ADDRESS_H_

#if __has_include("xla/stream_executor/device_address.h")
#include "xla/stream_executor/device_address.h"
#else
#include "xla/stream_executor/device_memory.h"
#endif

namespace tfx {

#if __has_include("xla/stream_executor/device_address.h")
using DeviceAddress = stream_executor::DeviceAddressBase;
#else
using DeviceAddress = stream_executor::DeviceMemoryBase;
#endif

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_DEVICE_ADDRESS_H_
