// The Hopper GPU as a Device: one stream, one context, graphs recorded from it. Every call makes
// the GPU current for its thread, so kernels launched after one of them reach it.
#include <set>

#include <cuda_runtime.h>

#include "absl/strings/str_cat.h"
#include "kernels/op.h"
#include "kernels/sm90/register.h"

namespace skein::kernels {
namespace {

absl::Status Failed(const char* what, cudaError_t error) {
  return absl::InternalError(
      absl::StrCat("sm90: ", what, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error)));
}

absl::Status Checked(const char* what, cudaError_t error) {
  return error == cudaSuccess ? absl::OkStatus() : Failed(what, error);
}

class Sm90Graph final : public StepGraph {
 public:
  Sm90Graph(int ordinal, cudaGraphExec_t exec, cudaStream_t stream, uint64_t num_nodes)
      : ordinal_(ordinal), exec_(exec), stream_(stream), num_nodes_(num_nodes) {}
  ~Sm90Graph() override {
    cudaSetDevice(ordinal_);
    cudaGraphExecDestroy(exec_);
  }

  absl::Status Launch() override {
    cudaSetDevice(ordinal_);
    return Checked("a graph launch", cudaGraphLaunch(exec_, stream_));
  }
  uint64_t num_nodes() const override { return num_nodes_; }

 private:
  const int ordinal_;
  cudaGraphExec_t exec_;
  cudaStream_t stream_;
  uint64_t num_nodes_;
};

class Sm90Device final : public Device {
 public:
  Sm90Device(int ordinal, cudaStream_t stream, uint32_t* defects)
      : ordinal_(ordinal), stream_(stream) {
    handle_.stream = stream;
    handle_.defects = defects;
  }
  ~Sm90Device() override {
    Use();
    cudaStreamDestroy(stream_);
    cudaFreeHost(handle_.defects);
  }

  DeviceProperties properties() const override {
    Use();
    cudaDeviceProp found{};
    size_t free = 0;
    size_t total = 0;
    DeviceProperties out;
    if (cudaGetDeviceProperties(&found, ordinal_) != cudaSuccess) return out;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) free = total = 0;
    out.name = found.name;
    out.features = absl::StrCat("sm_", found.major, found.minor);
    out.num_cores = found.multiProcessorCount;
    out.memory_bytes = total;
    out.free_bytes = free;
    return out;
  }
  DeviceStream stream() override { return {&handle_}; }

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    Use();
    void* memory = nullptr;
    if (cudaMalloc(&memory, bytes) != cudaSuccess) {
      cudaGetLastError();
      size_t free = 0;
      size_t total = 0;
      cudaMemGetInfo(&free, &total);
      return absl::ResourceExhaustedError(
          absl::StrCat("the GPU has ", free >> 20, " of ", total >> 20, " MiB free, ", bytes,
                       " bytes more are needed; lower model.max_model_len, scheduler.max_num_seqs, "
                       "scheduler.max_num_batched_tokens or worker.num_blocks"));
    }
    if (const cudaError_t error = cudaMemsetAsync(memory, 0, bytes, stream_);
        error != cudaSuccess) {
      cudaFree(memory);
      return Failed("clearing memory", error);
    }
    return memory;
  }

  absl::StatusOr<void*> AllocateHost(size_t bytes) override {
    Use();
    void* memory = nullptr;
    const unsigned flags = cudaHostAllocMapped | cudaHostAllocPortable;
    if (cudaHostAlloc(&memory, bytes, flags) != cudaSuccess) {
      cudaGetLastError();
      return absl::ResourceExhaustedError(
          absl::StrCat("the host does not pin ", bytes, " bytes of memory for the GPU"));
    }
    std::fill_n(static_cast<std::byte*>(memory), bytes, std::byte{0});
    pinned_.insert(memory);
    return memory;
  }

  void Free(void* memory) override {
    Use();
    if (pinned_.erase(memory) > 0) {
      cudaFreeHost(memory);
    } else {
      cudaFree(memory);
    }
  }

  absl::Status CopyIn(void* to, const void* from_host, size_t bytes) override {
    return Copy(to, from_host, bytes, cudaMemcpyHostToDevice);
  }
  absl::Status CopyOut(void* to_host, const void* from, size_t bytes) override {
    return Copy(to_host, from, bytes, cudaMemcpyDeviceToHost);
  }

  absl::Status Move(void* to, const void* from, size_t bytes) override {
    return Copy(to, from, bytes, cudaMemcpyDeviceToDevice);
  }
  void* queue() override { return stream_; }
  void SetWatch(Watch watch) override { watch_ = std::move(watch); }

  absl::Status Wait() override {
    Use();
    absl::Status status;
    while (watch_ != nullptr && status.ok() && cudaStreamQuery(stream_) == cudaErrorNotReady) {
      status = watch_();
    }
    if (const cudaError_t error = cudaStreamSynchronize(stream_); error != cudaSuccess) {
      return status.ok() ? Failed("the step", error) : status;
    }
    for (int op = 0; op < kNumOps; ++op) {
      const uint32_t row = std::exchange(handle_.defects[op], 0u);
      if (row == 0 || !status.ok()) continue;
      const std::string_view name = OpName(static_cast<OpId>(op));
      status = absl::InternalError(absl::StrCat(absl::string_view(name.data(), name.size()),
                                                ": row ", row - 1, " has a NaN"));
    }
    return status;
  }

  bool is_host() const override { return false; }
  uint64_t num_launches() const override { return handle_.launches + copies_; }

  absl::StatusOr<std::unique_ptr<StepGraph>> Capture(
      const std::function<absl::Status()>& queue) override {
    Use();
    const uint64_t launches = handle_.launches;
    const uint64_t copies = copies_;
    // The strictest mode: whatever would wait for the device fails.
    cudaError_t error = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal);
    if (error != cudaSuccess) return Failed("the beginning of a recording", error);
    const absl::Status queued = queue();
    cudaGraph_t graph = nullptr;
    error = cudaStreamEndCapture(stream_, &graph);
    handle_.launches = launches;
    copies_ = copies;
    if (!queued.ok() || error != cudaSuccess) {
      if (graph != nullptr) cudaGraphDestroy(graph);
      cudaGetLastError();
      return queued.ok() ? Failed("the end of a recording", error) : queued;
    }
    size_t nodes = 0;
    error = cudaGraphGetNodes(graph, nullptr, &nodes);
    cudaGraphExec_t exec = nullptr;
    if (error == cudaSuccess) error = cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphDestroy(graph);
    if (error != cudaSuccess) return Failed("making a graph of a recording", error);
    auto recorded = std::make_unique<Sm90Graph>(ordinal_, exec, stream_, nodes);
    error = cudaGraphUpload(exec, stream_);
    if (error != cudaSuccess) return Failed("bringing a graph to the GPU", error);
    return recorded;
  }

 private:
  void Use() const { cudaSetDevice(ordinal_); }

  absl::Status Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    Use();
    if (bytes == 0) return absl::OkStatus();
    ++copies_;
    return Checked("a copy", cudaMemcpyAsync(to, from, bytes, kind, stream_));
  }

  const int ordinal_;
  const cudaStream_t stream_;
  Sm90Stream handle_;
  uint64_t copies_ = 0;
  Watch watch_;
  std::set<void*> pinned_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Device>> OpenSm90Device(int ordinal) {
  const auto refuse = [](const std::string& what) {
    return absl::FailedPreconditionError(
        absl::StrCat("backend sm90: ", what, "; or name another backend (--backend cpu)"));
  };
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    return refuse(absl::StrCat("the GPU driver says: ", cudaGetErrorString(error),
                               "; load the NVIDIA driver, or one that runs CUDA ",
                               CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10));
  }
  if (ordinal < 0 || ordinal >= count) {
    return refuse(absl::StrCat("GPU ", ordinal, " is asked for, the driver shows ", count));
  }
  cudaDeviceProp found{};
  if (const cudaError_t error = cudaGetDeviceProperties(&found, ordinal); error != cudaSuccess) {
    return refuse(absl::StrCat("GPU ", ordinal, ": ", cudaGetErrorString(error)));
  }
  if (found.major != 9) {
    return refuse(absl::StrCat("GPU ", ordinal, " is a ", found.name, " of compute capability ",
                               found.major, ".", found.minor, ", needed is 9.0 (Hopper)"));
  }
  cudaStream_t stream = nullptr;
  void* defects = nullptr;
  cudaError_t error = cudaSetDevice(ordinal);
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error == cudaSuccess) {
    error = cudaHostAlloc(&defects, kNumOps * sizeof(uint32_t), cudaHostAllocMapped);
  }
  if (error != cudaSuccess) {
    return refuse(absl::StrCat("GPU ", ordinal, " cannot be used: ", cudaGetErrorString(error)));
  }
  auto* words = static_cast<uint32_t*>(defects);
  std::fill_n(words, kNumOps, 0u);
  return std::make_shared<Sm90Device>(ordinal, stream, words);
}

}  // namespace skein::kernels
