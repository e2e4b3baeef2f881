// SPDX-License-Identifier: Apache-2.0
//
// A driver of one GPU whose memory is the processor's. Copies and fills are done at once; a stream is
// a name, and kernels of its modules do nothing.

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { kBytes = 512, kOutOfMemory = 2, kNotFound = 500 };
static const size_t kMemory = (size_t)4 << 30;

// Something that is only handed back.
static void* NextHandle(void) {
  static char* last = (char*)0x1000;
  return last += 16;
}

static void* TheContext(void) {
  static void* context;
  if (context == NULL) context = NextHandle();
  return context;
}

static int CopyText(const char* from, char* to, int size) {
  strncpy(to, from, (size_t)size);
  return 0;
}

// The device.

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetName(char* name, int size, int device) { return CopyText("Stand-in", name, size); }
int cuDeviceGetPCIBusId(char* id, int size, int device) {
  return CopyText("0000:00:00.0", id, size);
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) { return *bytes = kMemory, 0; }
int cuDeviceGetUuid(char* uuid, int device) { return memset(uuid, 0, 16), 0; }
int cuDeviceGetUuid_v2(char* uuid, int device) { return memset(uuid, 0, 16), 0; }

// Attributes by CUdevice_attribute, of a GPU of compute capability 9.0.
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  static const int kAttributes[][2] = {
      {1, 1024},   {2, 1024},       {3, 1024},   {4, 64},   {5, 0x7fffffff}, {6, 65535},
      {7, 65535},  {8, 48 << 10},   {10, 32},    {12, 65536}, {13, 1980000}, {16, 132},
      {36, 2619000}, {37, 5120},    {38, 50 << 20}, {39, 2048}, {41, 1},     {75, 9},
      {81, 228 << 10}, {82, 65536}, {97, 227 << 10}, {106, 32},
  };
  *value = 0;
  for (size_t i = 0; i < sizeof kAttributes / sizeof *kAttributes; ++i) {
    if (kAttributes[i][0] == attribute) *value = kAttributes[i][1];
  }
  return 0;
}

// Contexts, streams and events.

int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = TheContext(), 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  return *flags = 0, *active = 0, 0;
}
int cuCtxGetCurrent(void** context) { return *context = TheContext(), 0; }
int cuCtxGetDevice(int* device) { return *device = 0, 0; }
int cuCtxGetApiVersion(void* context, unsigned* version) { return *version = 13000, 0; }
int cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = *greatest = 0, 0; }
int cuStreamCreate(void** stream, unsigned flags) { return *stream = NextHandle(), 0; }
int cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  return *stream = NextHandle(), 0;
}
int cuStreamIsCapturing(void* stream, int* status) { return *status = 0, 0; }
int cuStreamGetCtx(void* stream, void** context) { return *context = TheContext(), 0; }
int cuLaunchHostFunc(void* stream, void (*call)(void*), void* data) { return call(data), 0; }
int cuStreamAddCallback(void* stream, void (*call)(void*, int, void*), void* data, unsigned flags) {
  return call(stream, 0, data), 0;
}
int cuEventCreate(void** event, unsigned flags) { return *event = NextHandle(), 0; }
int cuModuleLoadData(void** module, const void* image) { return *module = NextHandle(), 0; }
int cuModuleLoadFatBinary(void** module, const void* image) { return *module = NextHandle(), 0; }
int cuModuleGetFunction(void** function, void* module, const char* name) {
  return *function = NextHandle(), 0;
}

// Memory.

static int Allocate(void** memory, size_t bytes) {
  return posix_memalign(memory, kBytes, bytes + kBytes) == 0 ? 0 : kOutOfMemory;
}
int cuMemGetInfo_v2(size_t* available, size_t* total) {
  return *available = *total = kMemory, 0;
}
int cuMemAlloc_v2(uint64_t* address, size_t bytes) { return Allocate((void**)address, bytes); }
int cuMemFree_v2(uint64_t address) { return free((void*)address), 0; }
int cuMemHostAlloc(void** memory, size_t bytes, unsigned flags) { return Allocate(memory, bytes); }
int cuMemFreeHost(void* memory) { return free(memory), 0; }
int cuMemGetAllocationGranularity(size_t* bytes, void* properties, int option) {
  return *bytes = (size_t)2 << 20, 0;
}
int cuPointerGetAttribute(void* value, int attribute, uint64_t address) {
  enum { kContext = 1, kMemoryType = 2, kDevice = 9 };
  if (attribute == kContext) *(void**)value = TheContext();
  if (attribute == kMemoryType) *(int*)value = 2;  // of the device
  if (attribute == kDevice) *(int*)value = 0;
  return 0;
}

static int Copy(uint64_t to, uint64_t from, size_t bytes) {
  return memcpy((void*)to, (const void*)from, bytes), 0;
}
static int Fill(uint64_t to, unsigned value, size_t count) {
  for (size_t i = 0; i < count; ++i) ((unsigned*)to)[i] = value;
  return 0;
}
int cuMemcpyHtoD_v2(uint64_t to, uint64_t from, size_t n) { return Copy(to, from, n); }
int cuMemcpyDtoH_v2(uint64_t to, uint64_t from, size_t n) { return Copy(to, from, n); }
int cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t n) { return Copy(to, from, n); }
int cuMemcpyHtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void* s) { return Copy(to, from, n); }
int cuMemcpyDtoHAsync_v2(uint64_t to, uint64_t from, size_t n, void* s) { return Copy(to, from, n); }
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void* s) { return Copy(to, from, n); }
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t n, void* s) { return Copy(to, from, n); }
int cuMemsetD8_v2(uint64_t to, unsigned char v, size_t n) { return memset((void*)to, v, n), 0; }
int cuMemsetD8Async(uint64_t to, unsigned char v, size_t n, void* s) {
  return memset((void*)to, v, n), 0;
}
int cuMemsetD32_v2(uint64_t to, unsigned v, size_t n) { return Fill(to, v, n); }
int cuMemsetD32Async(uint64_t to, unsigned v, size_t n, void* s) { return Fill(to, v, n); }

// Errors.

int cuGetErrorName(int error, const char** name) { return *name = "STAND_IN", 0; }
int cuGetErrorString(int error, const char** text) { return *text = "stand-in driver", 0; }

int cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t flags, void* found) {
  *function = dlsym(RTLD_DEFAULT, name);
  return *function == NULL ? kNotFound : 0;
}
