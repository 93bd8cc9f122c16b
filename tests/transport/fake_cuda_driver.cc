// The functions of CUDA's driver that UseGpu calls, with two GPUs and counters.

namespace {
int retained = 0;
void* current = nullptr;
char contexts[2];
}  // namespace

extern "C" {
int cuInit(unsigned) { return 0; }
int cuDeviceGetCount(int* devices) {
  *devices = 2;
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  ++retained;
  *context = &contexts[device];
  return 0;
}
int cuCtxSetCurrent(void* context) {
  current = context;
  return 0;
}
int cuMemcpyHtoD_v2(unsigned long long to, const void* from, unsigned long bytes) {
  if (current == nullptr) return 201;  // CUDA_ERROR_INVALID_CONTEXT
  __builtin_memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}
int cuMemcpyDtoH_v2(void* to, unsigned long long from, unsigned long bytes) {
  if (current == nullptr) return 201;
  __builtin_memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return 0;
}
int cuStreamSynchronize(void*) { return 0; }
// For the test.
int FakeCurrentGpu() {
  return current == nullptr ? -1 : static_cast<int>(static_cast<char*>(current) - contexts);
}
}
