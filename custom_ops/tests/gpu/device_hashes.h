// SPDX-License-Identifier: Apache-2.0
//
// Hash families where kernels run.

#ifndef TFX_LARGEOUT_TESTS_GPU_DEVICE_HASHES_H_
#define TFX_LARGEOUT_TESTS_GPU_DEVICE_HASHES_H_

#include <cstdint>
#include <vector>

#include "core/hash_family.h"
#include "tests/gpu/device_array.h"

namespace tfx::test {

// A copy of a family.
class DeviceFamily {
 public:
  explicit DeviceFamily(const core::HashFamily& family)
      : family_(family),
        elements_(Copy(family.elements, family.num_hashes * family.window)),
        planes_(Copy(family.planes, family.num_hashes * family.width)),
        radii_(Copy(family.radii, family.num_radii)) {
    if (family.elements != nullptr) family_.elements = elements_.data();
    if (family.planes != nullptr) family_.planes = planes_.data();
    if (family.radii != nullptr) family_.radii = radii_.data();
  }

  const core::HashFamily& family() const { return family_; }

 private:
  template <typename T>
  static std::vector<T> Copy(const T* from, int64_t n) {
    return from == nullptr ? std::vector<T>() : std::vector<T>(from, from + n);
  }

  core::HashFamily family_;
  DeviceArray<int32_t> elements_;
  DeviceArray<float> planes_, radii_;
};

}  // namespace tfx::test

#endif  // TFX_LARGEOUT_TESTS_GPU_DEVICE_HASHES_H_
