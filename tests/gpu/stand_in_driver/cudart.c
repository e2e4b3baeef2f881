// SPDX-License-Identifier: Apache-2.0
//
// The runtime over the stand-in driver. A launch does nothing: kernels that are to run are compiled
// for the processor, and are launched without it.

#include <dlfcn.h>
#include <driver_types.h>  // CUDA's, from TensorFlow
#include <stddef.h>
#include <string.h>

void** __cudaRegisterFatBinary(void* image) {
  static void* handle;
  return &handle;
}
int cudaGetDeviceCount(int* count) { return *count = 1, 0; }
int cudaGetDevice(int* device) { return *device = 0, 0; }
int cudaDriverGetVersion(int* version) { return *version = 13000, 0; }
int cudaRuntimeGetVersion(int* version) { return *version = 12050, 0; }
const char* cudaGetErrorString(int error) { return "stand-in runtime"; }
const char* cudaGetErrorName(int error) { return "standIn"; }
int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = *greatest = 0, 0;
}
int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  int (*of_driver)(int*, int, int) =
      (int (*)(int*, int, int))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuDeviceGetAttribute");
  return of_driver(value, attribute, device);
}
int cudaGetDeviceProperties_v2(struct cudaDeviceProp* properties, int device) {
  static const struct cudaDeviceProp kProperties = {
      .name = "Stand-in",
      .totalGlobalMem = (size_t)4 << 30,
      .sharedMemPerBlock = 48 << 10,
      .regsPerBlock = 65536,
      .warpSize = 32,
      .maxThreadsPerBlock = 1024,
      .maxThreadsDim = {1024, 1024, 64},
      .maxGridSize = {0x7fffffff, 65535, 65535},
      .major = 9,
      .multiProcessorCount = 132,
      .maxThreadsPerMultiProcessor = 2048,
  };
  return *properties = kProperties, 0;
}
int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream) {
  return memcpy(to, from, bytes), 0;
}
int cudaMemcpy(void* to, const void* from, size_t bytes, int kind) {
  return memcpy(to, from, bytes), 0;
}
int cudaMemsetAsync(void* to, int value, size_t bytes, void* stream) {
  return memset(to, value, bytes), 0;
}
