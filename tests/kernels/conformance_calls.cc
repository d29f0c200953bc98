// What conformance programs share: the list of cases, their names, comparison of bits.
#include <algorithm>
#include <cctype>

#include <gtest/gtest.h>

#include "tests/kernels/conformance.h"

namespace skein::kernels {

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  AddDenseCases(cases);
  AddExpertCases(cases);
  AddCacheCases(cases);
  AddAttentionCases(cases);
  AddSamplingCases(cases);
  return cases;
}

Rows Ids(uint32_t first, uint32_t count, uint8_t fill) {
  Rows rows;
  for (uint32_t i = 0; i < count; ++i) rows.ids.push_back(first + i);
  rows.fill = fill;
  return rows;
}

void ExpectSameBits(const Instance& one, const Instance& two) {
  for (size_t i = 0; i < one.outputs.size(); ++i) {
    const Output& output = one.outputs[i];
    if (!output.per_row) {
      EXPECT_EQ(output.buffer->bytes(), two.outputs[i].buffer->bytes()) << output.name;
      continue;
    }
    for (int64_t r = 0; r < output.buffer->view().dim(0); ++r) {
      if (output.skipped.count(r) != 0) continue;
      EXPECT_EQ(output.buffer->RowBytes(r), two.outputs[i].buffer->RowBytes(r))
          << output.name << " row " << r;
    }
  }
}

std::string CaseName(size_t index) {
  const Case test = AllCases()[index];
  std::string name = std::string(OpName(test.op)) + "_" + test.name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name + "_" + std::to_string(index);
}

}  // namespace skein::kernels
