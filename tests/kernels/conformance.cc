#include "tests/kernels/conformance.h"

#include <limits>
#include <utility>

namespace skein::kernels {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool IsFloat(DType dtype) {
  return dtype == DType::kBf16 || dtype == DType::kF32 || dtype == DType::kF64;
}

}  // namespace

double DrawElement(Draw draw, TestRandom& random) {
  switch (draw) {
    case Draw::kBell:
      return random.Bell();
    case Draw::kE4m3: {
      const int64_t code = random.Below(256);
      return static_cast<double>((code & 0x7F) == 0x7F ? 0x21 : code);
    }
    case Draw::kE2m1:
      return static_cast<double>(random.Below(256));
    case Draw::kScale:
      return static_cast<double>(119 + random.Below(5));
    case Draw::kAround1:
      return 1.0 + 0.3 * static_cast<double>(random.Signed());
    case Draw::kUnit:
      return random.Signed();
  }
  return 0;
}

std::shared_ptr<Buffer> CallBuilder::Keep(Buffer buffer) {
  ++tag_;
  return std::make_shared<Buffer>(std::move(buffer));
}

std::vector<int64_t> CallBuilder::WithRows(const std::vector<int64_t>& extents) const {
  std::vector<int64_t> shape = {rows_.size()};
  shape.insert(shape.end(), extents.begin(), extents.end());
  return shape;
}

void CallBuilder::FillRows(Buffer& buffer, Draw draw) {
  for (int64_t r = 0; r < rows_.size(); ++r) {
    const uint32_t id = rows_.ids[static_cast<size_t>(r)];
    TestRandom random(tag_, id);
    const bool poison = IsFloat(buffer.view().dtype) && rows_.poisoned.count(id) != 0;
    buffer.FillRow(r, [&](int64_t) { return poison ? kNan : DrawElement(draw, random); });
  }
}

TensorView CallBuilder::In(DType dtype, const std::vector<int64_t>& extents, Draw draw,
                           int64_t gap) {
  if (gaps_ == Gaps::kWhole) gap = 8;
  instance_.inputs.push_back(Keep(Buffer(dtype, WithRows(extents), gap, 0xFF)));
  FillRows(*instance_.inputs.back(), draw);
  return instance_.inputs.back()->view();
}

TensorView CallBuilder::InBy(DType dtype, const std::vector<int64_t>& extents,
                             const std::function<double(uint32_t, int64_t)>& fn) {
  instance_.inputs.push_back(Keep(Buffer(dtype, WithRows(extents), 0, 0xFF)));
  for (int64_t r = 0; r < rows_.size(); ++r) {
    const uint32_t id = rows_.ids[static_cast<size_t>(r)];
    const bool poison = IsFloat(dtype) && rows_.poisoned.count(id) != 0;
    instance_.inputs.back()->FillRow(r, [&](int64_t i) { return poison ? kNan : fn(id, i); });
  }
  return instance_.inputs.back()->view();
}

TensorView CallBuilder::Shared(DType dtype, const std::vector<int64_t>& shape, Draw draw) {
  TestRandom random(tag_ + 7000, 0);
  return SharedBy(dtype, shape, [&](int64_t) { return DrawElement(draw, random); });
}

TensorView CallBuilder::SharedBy(DType dtype, const std::vector<int64_t>& shape,
                                 const std::function<double(int64_t)>& fn) {
  instance_.inputs.push_back(Keep(Buffer(dtype, shape, 0, 0xFF)));
  instance_.inputs.back()->Fill(fn);
  return instance_.inputs.back()->view();
}

TensorView CallBuilder::Out(const std::string& name, DType dtype,
                            const std::vector<int64_t>& extents, Tolerance tolerance,
                            double steps) {
  Output output;
  output.name = name;
  // Rank one has no rows to put gaps between; bytes may be rows of wider numbers.
  const bool whole = dtype == DType::kU8 || gaps_ == Gaps::kWhole;
  const int64_t gap = extents.empty() ? 0 : whole ? 8 : 5;
  output.buffer = Keep(Buffer(dtype, WithRows(extents), gap, rows_.fill));
  output.tolerance = tolerance;
  output.steps = steps;
  instance_.outputs.push_back(std::move(output));
  return instance_.outputs.back().buffer->view();
}

TensorView CallBuilder::WholeOut(const std::string& name, DType dtype,
                                 const std::vector<int64_t>& shape) {
  Output output;
  output.name = name;
  output.buffer = Keep(Buffer(dtype, shape, 0, rows_.fill));
  output.per_row = false;
  instance_.outputs.push_back(std::move(output));
  return instance_.outputs.back().buffer->view();
}

TensorView CallBuilder::InOut(const std::string& name, DType dtype,
                              const std::vector<int64_t>& extents, Draw draw, Tolerance tolerance) {
  const TensorView view = Out(name, dtype, extents, tolerance);
  FillRows(*instance_.outputs.back().buffer, draw);
  instance_.outputs.back().in_place = true;
  return view;
}

}  // namespace skein::kernels
