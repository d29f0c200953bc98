// NCCL itself with one rank on the GPU of this machine: queued, recorded, and ended while a device
// is waited for. Skipped with the reason where there is no NCCL.
#include <array>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "protocol/base/clock.h"
#include "protocol/tensor/nccl_group.h"
#include "worker/gpu_backend.h"

namespace skein::tests {
namespace {

using protocol::NcclGroup;

class NcclOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    auto library = protocol::NcclLibrary::Open("libnccl.so.2");
    if (!library.ok()) GTEST_SKIP() << library.status().message();
    std::printf("NCCL %d\n", (*library)->version());
    device_ = *worker::OpenGpu("sm90", 0);
    ASSERT_TRUE(device_->Wait().ok());
    const auto id = (*library)->MakeId();
    ASSERT_TRUE(id.ok()) << id.status();
    group_ = std::make_unique<NcclGroup>(*library, 0, 1, "group 0 epoch 1");
    const absl::Status joined =
        group_->Join(*id, protocol::MonotonicNow() + absl::Seconds(30), nullptr);
    ASSERT_TRUE(joined.ok()) << joined;
    memory_ = static_cast<char*>(*device_->Allocate(3 * kBytes));
  }
  // What lies at the place after `text` was written to the first and all was exchanged.
  absl::Status Queue() {
    const NcclGroup::Part part{memory_, memory_ + kBytes, kBytes};
    const NcclGroup::Queue queue{device_->queue(), protocol::MonotonicNow() + absl::Seconds(30)};
    const absl::Status gathered = group_->AllGather({&part, 1}, queue);
    if (!gathered.ok()) return gathered;
    return group_->AllToAll(memory_ + kBytes, memory_ + 2 * kBytes, kBytes, queue);
  }
  std::string After(const std::string& text, const std::function<absl::Status()>& queue) {
    std::array<char, kBytes> bytes{};
    text.copy(bytes.data(), bytes.size());
    EXPECT_TRUE(device_->CopyIn(memory_, bytes.data(), kBytes).ok());
    const absl::Status queued = queue();
    EXPECT_TRUE(queued.ok()) << queued;
    bytes = {};
    EXPECT_TRUE(device_->CopyOut(bytes.data(), memory_ + 2 * kBytes, kBytes).ok());
    EXPECT_TRUE(device_->Wait().ok());
    return bytes.data();
  }

  static constexpr size_t kBytes = 512;
  std::shared_ptr<kernels::Device> device_;
  std::unique_ptr<NcclGroup> group_;
  char* memory_ = nullptr;
};

TEST_F(NcclOnGpu, WhatIsQueuedAndWhatIsRecordedBringsTheBytes) {
  EXPECT_EQ(After("queued", [this] { return Queue(); }), "queued");
  auto graph = device_->Capture([this] { return Queue(); });
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_GT((*graph)->num_nodes(), 0u);
  for (const char* text : {"first", "second", "third"}) {
    EXPECT_EQ(After(text, [&] { return (*graph)->Launch(); }), text);
  }
  EXPECT_TRUE(group_->Check().ok()) << group_->Check();
  graph->reset();
  group_->Abort();
  EXPECT_EQ(group_->Check().code(), absl::StatusCode::kAborted);
}

// NCCL ends a communicator when nothing recorded with it is left; a device does not wait for that.
TEST_F(NcclOnGpu, AWatchThatEndsEverythingEndsTheWait) {
  ASSERT_TRUE(Queue().ok());
  ASSERT_TRUE(device_->Wait().ok());
  auto graph = device_->Capture([this] { return Queue(); });
  ASSERT_TRUE(graph.ok()) << graph.status();
  device_->SetWatch([this] {
    group_->Abort();
    return absl::AbortedError("a rank is gone");
  });
  // Long enough that the wait finds some of it under way: 100 ms at 4 TB/s.
  constexpr size_t kLarge = size_t{1} << 29;
  auto* large = static_cast<char*>(*device_->Allocate(2 * kLarge));
  for (int i = 0; i < 400; ++i) ASSERT_TRUE(device_->Move(large, large + kLarge, kLarge).ok());
  ASSERT_TRUE((*graph)->Launch().ok());
  EXPECT_EQ(device_->Wait(), absl::AbortedError("a rank is gone"));
  device_->SetWatch(nullptr);
  graph->reset();
  group_.reset();
  EXPECT_TRUE(device_->Wait().ok());
}

}  // namespace
}  // namespace skein::tests
