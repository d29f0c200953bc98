// A library with the calls of NVML that the inventory makes, and a thread that stays: the name of
// its one device says whether that thread would take SIGTERM. Any thread. Must never be linked.
#include <atomic>
#include <cstdio>
#include <thread>

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

namespace {

std::atomic<int> takes_signals{-1};

}  // namespace

extern "C" {

int nvmlInit_v2() {
  pthread_t thread;
  const int error = ::pthread_create(
      &thread, nullptr,
      [](void*) -> void* {
        sigset_t mask;
        ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
        takes_signals = ::sigismember(&mask, SIGTERM) == 0 ? 1 : 0;
        while (true) ::pause();
      },
      nullptr);
  while (error == 0 && takes_signals < 0) std::this_thread::yield();
  return error;
}
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 1;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned, void** device) {
  *device = &takes_signals;
  return 0;
}
int nvmlDeviceGetMinorNumber(void*, unsigned* minor) {
  *minor = 0;
  return 0;
}
int nvmlDeviceGetUUID(void*, char* uuid, unsigned size) {
  std::snprintf(uuid, size, "GPU-fake");
  return 0;
}
int nvmlDeviceGetName(void*, char* name, unsigned size) {
  std::snprintf(name, size, takes_signals == 1 ? "takes SIGTERM" : "leaves SIGTERM");
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* sizes) {
  sizes[0] = sizes[1] = sizes[2] = 0;
  return 0;
}
int nvmlSystemGetDriverVersion(char* version, unsigned size) {
  std::snprintf(version, size, "1.0");
  return 0;
}

}  // extern "C"
