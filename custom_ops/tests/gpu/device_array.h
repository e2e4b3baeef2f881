// SPDX-License-Identifier: Apache-2.0
//
// Arrays where kernels run: on the device under nvcc, else on the heap, where sanitizers check
// them.

#ifndef TFX_LARGEOUT_TESTS_GPU_DEVICE_ARRAY_H_
#define TFX_LARGEOUT_TESTS_GPU_DEVICE_ARRAY_H_

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "core/gpu/cuda_on_cpu.h"
#include "tests/expect.h"

namespace tfx::test {

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size) {
#ifdef __CUDACC__
    EXPECT(cudaMalloc(&data_, Bytes() + 1) == cudaSuccess);
#else
    heap_.reset(new T[size]);
    data_ = heap_.get();
#endif
  }

  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
#ifdef __CUDACC__
    EXPECT(cudaMemcpy(data_, values.data(), Bytes(), cudaMemcpyHostToDevice) == cudaSuccess);
#else
    std::copy(values.begin(), values.end(), data_);
#endif
  }

  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

#ifdef __CUDACC__
  ~DeviceArray() { cudaFree(data_); }
#endif

  T* data() const { return data_; }

  // Its content after all started work has ended.
  std::vector<T> Values() const {
    std::vector<T> values(size_);
#ifdef __CUDACC__
    EXPECT(cudaMemcpy(values.data(), data_, Bytes(), cudaMemcpyDeviceToHost) == cudaSuccess);
#else
    std::copy(data_, data_ + size_, values.begin());
#endif
    return values;
  }

 private:
  size_t Bytes() const { return size_ * sizeof(T); }

  size_t size_;
  T* data_ = nullptr;
#ifndef __CUDACC__
  std::unique_ptr<T[]> heap_;
#endif
};

// Copies of arrays on the device: one per array, identified by its address.
class DeviceCopies {
 public:
  // The address of the copy.
  template <typename T>
  T* operator()(const std::vector<T>& array) {
    std::shared_ptr<void>& copy = copies_[&array];
    if (copy == nullptr) copy = std::make_shared<DeviceArray<T>>(array);
    return static_cast<DeviceArray<T>*>(copy.get())->data();
  }

  // The present content of a copy; the array itself, if it has none.
  template <typename T>
  std::vector<T> Now(const std::vector<T>& array) const {
    const auto found = copies_.find(&array);
    if (found == copies_.end()) return array;
    return static_cast<const DeviceArray<T>*>(found->second.get())->Values();
  }

  template <typename T>
  void Back(std::vector<T>* array) const {
    *array = Now(*array);
  }

 private:
  std::map<const void*, std::shared_ptr<void>> copies_;
};

}  // namespace tfx::test

#endif  // TFX_LARGEOUT_TESTS_GPU_DEVICE_ARRAY_H_
