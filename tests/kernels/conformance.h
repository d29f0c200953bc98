// One call of one operator with its buffers, runnable on any backend of a registry, and the list of
// all such calls. A row's inputs depend on its id alone, so that a row can be compared alone and
// among others. Used by conformance_test.cc; the cases are in conformance_cases_*.cc.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/kernel_registry.h"
#include "tests/kernels/buffer.h"

namespace skein::kernels {

// Which rows a call has: ids decide the content, `poisoned` ids get NaN in every float input.
struct Rows {
  std::vector<uint32_t> ids;
  std::set<uint32_t> poisoned;
  uint8_t fill = 0xA5;  // what outputs hold before the call

  int64_t size() const { return static_cast<int64_t>(ids.size()); }
};

// How an output is judged against the reference.
enum class Tolerance : uint8_t {
  kBits,     // T0: every byte
  kF32,      // T1: row error against the naive f32 evaluation
  kBf16,     // T2: almost all elements equal, none off by more than two steps
  kProduct,  // T3: row error 2^-7 and similarity
  kRecord,   // SampleRecord: tokens and flags exact, logprobs to f32 precision
};

struct Output {
  std::string name;
  std::shared_ptr<Buffer> buffer;
  Tolerance tolerance = Tolerance::kBits;
  double steps = 16;          // c of T1: row error in units of 2^-24
  bool in_place = false;      // holds input before the call
  bool per_row = true;        // leading dimension is the call's rows
  std::set<int64_t> skipped;  // rows that must keep their bytes
};

struct Instance {
  std::vector<std::shared_ptr<Buffer>> inputs;
  std::vector<Output> outputs;
  std::function<absl::Status(const KernelRegistry&, std::string_view, DeviceStream)> run;
  std::function<absl::Status(const KernelRegistry&, std::string_view)> supports;
};

struct Case {
  OpId op = OpId::kCount;
  std::string name;
  std::function<Instance(const Rows&)> make;
  bool rows_independent = true;  // outputs of a row can be compared across calls
  bool nan_is_error = false;     // a NaN ends the call, so neighbours cannot be poisoned
  // Rows of the largest call that rows are compared with. Above 64 the case is too large for the
  // reference, which computes few rows of it.
  uint32_t rows_max = 64;
};

// Cases of the operator families.
void AddDenseCases(std::vector<Case>& cases);
void AddExpertCases(std::vector<Case>& cases);
void AddCacheCases(std::vector<Case>& cases);
void AddAttentionCases(std::vector<Case>& cases);
void AddSamplingCases(std::vector<Case>& cases);

// All of them, and a name for the case of an index.
std::vector<Case> AllCases();
std::string CaseName(size_t index);
template <typename Info>
std::string CaseNameOf(const Info& info) {
  return CaseName(info.param);
}
// Rows with the ids from `first` on.
Rows Ids(uint32_t first, uint32_t count, uint8_t fill = 0xA5);
// Equal bytes of all outputs, except skipped rows.
void ExpectSameBits(const Instance& one, const Instance& two);

// What an input element is drawn from.
enum class Draw : uint8_t {
  kBell,     // bell-shaped reals
  kE4m3,     // e4m3 codes without NaN
  kE2m1,     // any byte
  kScale,    // e8m0 bytes around 2^-6
  kAround1,  // reals around 1: norm weights
  kUnit,     // reals in [-1, 1]: cosines
};

double DrawElement(Draw draw, TestRandom& random);

// Gaps between the rows of a call: odd ones, or of eight elements, so that rows whose extents are
// multiples of eight begin at multiples of sixteen bytes.
enum class Gaps : uint8_t { kOdd, kWhole };

// Collects the buffers of one call.
class CallBuilder {
 public:
  explicit CallBuilder(const Rows& rows, Gaps gaps = Gaps::kOdd) : rows_(rows), gaps_(gaps) {}

  const Rows& rows() const { return rows_; }

  // [rows, extents...], content of row r from rows.ids[r].
  TensorView In(DType dtype, const std::vector<int64_t>& extents, Draw draw, int64_t gap = 3);
  // As In, element i of row id given by fn(id, i).
  TensorView InBy(DType dtype, const std::vector<int64_t>& extents,
                  const std::function<double(uint32_t, int64_t)>& fn);
  // The same for every call.
  TensorView Shared(DType dtype, const std::vector<int64_t>& shape, Draw draw);
  TensorView SharedBy(DType dtype, const std::vector<int64_t>& shape,
                      const std::function<double(int64_t)>& fn);
  // [rows, extents...] to be written.
  TensorView Out(const std::string& name, DType dtype, const std::vector<int64_t>& extents,
                 Tolerance tolerance, double steps = 16);
  // An output of any shape that is not per row.
  TensorView WholeOut(const std::string& name, DType dtype, const std::vector<int64_t>& shape);
  // As In, but overwritten by the call.
  TensorView InOut(const std::string& name, DType dtype, const std::vector<int64_t>& extents,
                   Draw draw, Tolerance tolerance);
  // Rows of the last output that the call must leave alone.
  void Skip(const std::set<int64_t>& rows) { instance_.outputs.back().skipped = rows; }

  template <typename Op>
  Instance Finish(const typename Op::Problem& problem, const typename Op::Args& args) {
    instance_.run = [problem, args](const KernelRegistry& registry, std::string_view backend,
                                    DeviceStream stream) {
      const KernelVariant<Op>* variant = registry.Find<Op>(backend);
      if (variant == nullptr) return absl::NotFoundError("not registered");
      TestWorkspace workspace(variant->workspace_bytes(problem));
      return variant->run(problem, args, workspace.get(), stream);
    };
    instance_.supports = [problem](const KernelRegistry& registry, std::string_view backend) {
      return registry.Find<Op>(backend)->supports(problem);
    };
    return instance_;
  }

 private:
  std::shared_ptr<Buffer> Keep(Buffer buffer);
  std::vector<int64_t> WithRows(const std::vector<int64_t>& extents) const;
  void FillRows(Buffer& buffer, Draw draw);

  Rows rows_;
  Gaps gaps_;
  uint64_t tag_ = 100;
  Instance instance_;
};

}  // namespace skein::kernels
