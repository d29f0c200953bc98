// Random weights in the official names, shapes and formats, with the spread that keeps activations
// of ordinary size: to measure a model without its checkpoint (model.load_format dummy). Owns
// nothing. Any thread. Must never: hold a shape that is not in the specification.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker/model/model_spec.h"
#include "worker/model/weight_loader.h"

namespace skein::worker::dummy {

// What the values of a tensor are like.
enum class Kind { kE4m3, kE2m1, kScale, kBf16, kNorm, kF32, kF32Zero };

struct Tensor {
  std::string name;
  Kind kind = Kind::kBf16;
  std::vector<int64_t> shape;  // as stored
  double spread = 1;           // standard deviation of the values, for scales of their codes

  const char* dtype() const {
    switch (kind) {
      case Kind::kE4m3:
        return "F8_E4M3";
      case Kind::kE2m1:
        return "I8";
      case Kind::kScale:
        return "F8_E8M0";
      case Kind::kBf16:
      case Kind::kNorm:
        return "BF16";
      case Kind::kF32:
      case Kind::kF32Zero:
        return "F32";
    }
    return "";
  }
  int64_t bytes() const {
    int64_t total = dtype() == std::string_view("BF16")      ? 2
                    : dtype()[0] == 'F' && dtype()[1] == '3' ? 4
                                                             : 1;
    for (const int64_t extent : shape) total *= extent;
    return total;
  }
};

// The tensors of a model, as worker/model/weight_loader.cc expects them.
std::vector<Tensor> TensorsOf(const ModelSpec& spec);

// Bytes of tensors.
class RandomBytes {
 public:
  RandomBytes();
  // The `bytes` bytes that follow `state`, which is moved on; a multiple of 65536 or the rest.
  std::string Part(const Tensor& tensor, int64_t bytes, uint64_t& state) const;
  // Where the stream of a tensor begins.
  static uint64_t Begin(std::string_view name, uint64_t seed);

 private:
  void Append(const Tensor& tensor, uint64_t bits, std::string& out) const;

  std::array<float, 65536> values_;
  std::array<uint8_t, 65536> e4m3_, e2m1_;
};

// Makes the tensors of a model, each kind from one block of 16 MiB that is repeated: memory is
// filled as fast as it is copied. A tensor's bytes depend on the model alone.
TensorMaker MakerOf(const ModelSpec& spec);

// Bytes of all tensors.
uint64_t TotalBytes(const ModelSpec& spec);

}  // namespace skein::worker::dummy
