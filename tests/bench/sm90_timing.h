// What the parts of sm90_bench share: device memory, timing by replays of a graph, and the lines
// that are printed. Errors of the device end the program.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#include "kernels/kernel_registry.h"
#include "kernels/sm90/register.h"

namespace skein::kernels {

struct Setting {
  const KernelRegistry& registry;
  int reps;
  std::string prefix;
  double copy_gbs = 0;
  bool failed = false;
};

void Check(cudaError_t error);
void Check(const absl::Status& status);

// Device memory until the end of the program.
uint8_t* Allocate(size_t bytes);
// Random bytes that are no NaN codes, or bytes around `centre` if it is given.
uint8_t* RandomBytes(size_t bytes, int centre = -1);
std::vector<uint8_t> Download(const uint8_t* data, size_t bytes);
template <typename T>
T* Upload(const std::vector<T>& values) {
  auto* data = reinterpret_cast<T*>(Allocate(values.size() * sizeof(T)));
  Check(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return data;
}

// The stream of all calls: graphs are captured on it.
Sm90Stream& Stream();
// Bytes read plus bytes written per second by a large copy on the device.
double CopyBandwidth();

bool Wanted(const Setting& setting, const std::string& name);
// Times a call whose output has a row error of `error`; call i of the graph gets i. The floor is
// that of its bytes, or what the caller knows of its products.
void Measure(Setting& setting, const std::string& name, double error, double bytes,
             const std::function<void(int)>& call, double product_us = 0);

void BenchAttention(Setting& setting, int batch);

}  // namespace skein::kernels
