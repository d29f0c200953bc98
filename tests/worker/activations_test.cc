// Memory of the arena and the small views of it; the three sets of number formats.
#include "worker/model/activations.h"

#include <cstring>

#include <gtest/gtest.h>

namespace skein::worker {
namespace {

using kernels::DType;
using kernels::KvFormat;
using kernels::TensorView;

TEST(Arena, GivesZeroedAlignedMemory) {
  Arena arena;
  const TensorView a = arena.Allocate(DType::kF32, {3, 5});
  const TensorView b = arena.Allocate(DType::kU8, {1});
  for (const TensorView& view : {a, b}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % 64, 0U);
  }
  for (int i = 0; i < 15; ++i) EXPECT_EQ(a.as<float>()[i], 0);
  EXPECT_EQ(arena.total_bytes(), 61U);
  EXPECT_NE(a.data, b.data);
  // What was given stays where it is.
  a.as<float>()[14] = 7;
  for (int i = 0; i < 100; ++i) std::memset(arena.Bytes(1000), 255, 1000);
  EXPECT_EQ(a.as<float>()[14], 7);
  EXPECT_EQ(arena.total_bytes(), 100'061U);
}

TEST(Views, RowsColumnsAndReshape) {
  Arena arena;
  const TensorView view = arena.Allocate(DType::kI32, {4, 6});
  for (int i = 0; i < 24; ++i) view.as<int32_t>()[i] = i;
  const TensorView rows = Rows(view, 2);
  EXPECT_EQ(rows.dim(0), 2);
  EXPECT_EQ(rows.dim(1), 6);
  EXPECT_EQ(rows.data, view.data);
  const TensorView columns = Columns(view, 4, 2);
  EXPECT_EQ(columns.dim(0), 4);
  EXPECT_EQ(columns.dim(1), 2);
  EXPECT_EQ(reinterpret_cast<int32_t*>(columns.row(3))[1], 23);
  const TensorView shaped = Reshape(view, {2, 12});
  EXPECT_EQ(reinterpret_cast<int32_t*>(shaped.row(1))[0], 12);
}

TEST(Numerics, SetsOfFormats) {
  const Numerics model = Numerics::Model();
  EXPECT_EQ(model.act, DType::kBf16);
  EXPECT_EQ(model.wide, DType::kF32);
  EXPECT_TRUE(model.quantise);
  EXPECT_EQ(model.window, KvFormat::kFp8Group32);
  EXPECT_EQ(model.history, KvFormat::kFp4Group16);
  EXPECT_EQ(model.index, KvFormat::kFp4Group32);
  const Numerics exact = Numerics::Exact();
  EXPECT_EQ(exact.act, DType::kBf16);
  EXPECT_EQ(exact.wide, DType::kF64);
  EXPECT_EQ(exact.open, KvFormat::kF64);
  EXPECT_EQ(exact.history, KvFormat::kFp4Group16);
  const Numerics none = Numerics::Unquantised();
  EXPECT_EQ(none.act, DType::kF64);
  EXPECT_FALSE(none.quantise);
  EXPECT_EQ(none.window, KvFormat::kF64);
  EXPECT_EQ(none.index, KvFormat::kF64);
}

}  // namespace
}  // namespace skein::worker
