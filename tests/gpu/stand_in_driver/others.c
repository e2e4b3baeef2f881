// SPDX-License-Identifier: Apache-2.0
//
// What TensorFlow asks of the other libraries when it makes a device: handles and versions.

#include <stddef.h>

static int Handle(void** handle) {
  static char something;
  return *handle = &something, 0;
}

int cublasCreate_v2(void** handle) { return Handle(handle); }
int cublasLtCreate(void** handle) { return Handle(handle); }
int cublasGetVersion_v2(void* handle, int* version) { return *version = 120500, 0; }
int cudnnCreate(void** handle) { return Handle(handle); }
size_t cudnnGetVersion(void) { return 90300; }
int cudnnGetProperty(int part, int* version) {
  return *version = part == 0 ? 9 : part == 1 ? 3 : 0, 0;
}
int cusolverDnCreate(void** handle) { return Handle(handle); }
