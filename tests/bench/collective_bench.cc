// What a collective of ranks takes, by size and number of ranks: real processes, one for each rank,
// timed by rank 0. With --hosts the ranks are dealt out to so many hosts by name, which meet over
// UCX by TCP of the loopback, not over a wire. Beside each figure stands what a copy of the same
// bytes on one thread takes in the same run. Every rank checks what it gets before and after.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "protocol/base/clock.h"
#include "protocol/tensor/host_group.h"
#include "protocol/tensor/ucx_port.h"
#include "tests/bench/bench_line.h"

namespace skein::bench {
namespace {

using Clock = std::chrono::steady_clock;
using protocol::GatherPart;
using protocol::HostGroup;
using protocol::HostGroupOptions;

constexpr size_t kCapacity = size_t{64} << 20;

struct Options {
  RunIdentity run{.bench = "collective_bench", .commit = "unknown", .seed = 1, .reps = 400};
  std::vector<int> ranks = {1, 2, 4};
  int hosts = 1;
};

// Where the ports of the ranks are, in memory that all of them see.
struct Addresses {
  char text[HostGroup::kRanksMax][32] = {};
  std::atomic<int> count = 0;
};

enum class Kind { kGather, kExchange, kLayer };

// One measured thing: `bytes` of each rank for a gather, of each pair for an exchange, or the rows
// of each rank through an expert layer of V4.1 (5120 wide, 6 experts a row): dispatch, then
// combine.
struct Case {
  Kind kind;
  size_t size;
  std::string Name(int ranks, int hosts) const {
    const char* name = kind == Kind::kGather     ? "gather_"
                       : kind == Kind::kExchange ? "exchange_"
                                                 : "layer_rows_";
    return absl::StrCat(name, size, "_ranks_", ranks,
                        hosts == 1 ? "" : absl::StrCat("_hosts_", hosts));
  }
};

const std::vector<Case>& Cases() {
  static const auto* cases = new std::vector<Case>{
      {Kind::kGather, 64},          {Kind::kGather, 4096}, {Kind::kGather, 65'536},
      {Kind::kGather, 1'048'576},   {Kind::kExchange, 64}, {Kind::kExchange, 65'536},
      {Kind::kExchange, 1'048'576}, {Kind::kLayer, 1},     {Kind::kLayer, 16},
      {Kind::kLayer, 128}};
  return *cases;
}

constexpr size_t kWidth = 5120;
constexpr size_t kExperts = 6;

// Runs cases on one rank of a group that has met.
class RankRun {
 public:
  explicit RankRun(HostGroup& group)
      : group_(group),
        ranks_(static_cast<size_t>(group.size())),
        rank_(static_cast<size_t>(group.rank())),
        mine_(kCapacity),
        all_(ranks_ * (size_t{4} << 20) + kCapacity) {}

  bool Once(const Case& it, uint8_t mark) {
    switch (it.kind) {
      case Kind::kGather:
        return Gather(it.size, mark);
      case Kind::kExchange:
        return Exchange(it.size, mark);
      case Kind::kLayer:
        return Layer(it.size, mark);
    }
    return false;
  }
  // Bytes that this rank reads of all ranks.
  size_t Bytes(const Case& it) const {
    if (it.kind != Kind::kLayer) return ranks_ * it.size;
    return ranks_ * it.size * (kWidth + kWidth / 32 + kExperts * 8) +
           it.size * kExperts * kWidth * 2;
  }
  double CopySeconds(size_t bytes) {
    const auto begin = Clock::now();
    std::memcpy(all_.data(), mine_.data(), std::min(bytes, mine_.size()));
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

 private:
  absl::Time Deadline() const { return protocol::MonotonicNow() + absl::Seconds(60); }

  // The first and last byte of what each rank gives say whose it is.
  void Mark(std::byte* bytes, size_t size, size_t rank, uint8_t mark) const {
    bytes[0] = bytes[size - 1] = static_cast<std::byte>(rank * 17 + mark);
  }
  bool Marked(const std::byte* bytes, size_t size, size_t rank, uint8_t mark) const {
    const auto want = static_cast<std::byte>(rank * 17 + mark);
    return bytes[0] == want && bytes[size - 1] == want;
  }

  bool Gather(size_t size, uint8_t mark) {
    Mark(mine_.data(), size, rank_, mark);
    const GatherPart part{{mine_.data(), size}, {all_.data(), ranks_ * size}, size};
    if (!group_.AllGather({&part, 1}, Deadline()).ok()) return false;
    for (size_t rank = 0; rank < ranks_; ++rank) {
      if (!Marked(all_.data() + rank * size, size, rank, mark)) return false;
    }
    return true;
  }

  bool Exchange(size_t size, uint8_t mark) {
    Mark(mine_.data(), size, rank_, mark);
    for (size_t to = 0; to < ranks_; ++to) {
      if (!group_.Put(static_cast<int>(to), rank_ * size, {mine_.data(), size}).ok()) return false;
    }
    if (!group_.Collect({all_.data(), ranks_ * size}, Deadline()).ok()) return false;
    for (size_t rank = 0; rank < ranks_; ++rank) {
      if (!Marked(all_.data() + rank * size, size, rank, mark)) return false;
    }
    return true;
  }

  // Codes, scales, choices and weights of all rows to all; then each row's products home, one for
  // each of its experts, which lie evenly on the ranks.
  bool Layer(size_t rows, uint8_t mark) {
    const size_t row_bytes = kWidth + kWidth / 32 + kExperts * 8;
    if (!Gather(rows * row_bytes, mark)) return false;
    const size_t product = kWidth * 2;
    Mark(mine_.data(), product, rank_, mark);
    for (size_t home = 0; home < ranks_; ++home) {
      for (size_t place = rank_; place < rows * kExperts; place += ranks_) {
        const auto to = static_cast<int>(home);
        if (!group_.Put(to, place * product, {mine_.data(), product}).ok()) return false;
      }
    }
    if (!group_.Collect({all_.data(), rows * kExperts * product}, Deadline()).ok()) return false;
    for (size_t place = 0; place < rows * kExperts; ++place) {
      if (!Marked(all_.data() + place * product, product, place % ranks_, mark)) return false;
    }
    return true;
  }

  HostGroup& group_;
  const size_t ranks_, rank_;
  std::vector<std::byte> mine_, all_;
};

// The way to ranks of other hosts, and where they all are.
bool OpenPort(const Options& options, int rank, int ranks, Addresses& addresses,
              std::unique_ptr<protocol::UcxGroupPort>& port, HostGroupOptions& group) {
  auto made = protocol::UcxGroupPort::Create({.transports = protocol::UcxTransports::kTcp});
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", made.status().ToString().c_str());
    return false;
  }
  port = *std::move(made);
  std::snprintf(addresses.text[rank], sizeof(addresses.text[rank]), "%s", port->address().c_str());
  ++addresses.count;
  const absl::Time end = protocol::MonotonicNow() + absl::Seconds(30);
  while (addresses.count < ranks) {
    if (protocol::MonotonicNow() > end) return false;
    ::poll(nullptr, 0, 1);
  }
  for (int i = 0; i < ranks; ++i) {
    group.places.push_back({absl::StrCat("host ", i % options.hosts), addresses.text[i]});
  }
  group.port = port.get();
  group.epoch = 1;
  return true;
}

// All cases on one rank; rank 0 prints.
bool RunRank(const Options& options, const std::string& name, int rank, int ranks,
             Addresses& addresses) {
  HostGroupOptions wanted;
  wanted.name = name;
  wanted.label = "collective_bench";
  wanted.rank = rank;
  wanted.size = ranks;
  wanted.capacity = kCapacity;
  std::unique_ptr<protocol::UcxGroupPort> port;
  if (options.hosts > 1 && !OpenPort(options, rank, ranks, addresses, port, wanted)) return false;
  auto group = HostGroup::Create(std::move(wanted));
  if (!group.ok() || !(*group)->Join(protocol::MonotonicNow() + absl::Seconds(30)).ok()) {
    return false;
  }
  RankRun run(**group);
  bool valid = true;
  for (const Case& it : Cases()) {
    for (int i = 0; i < 20; ++i) valid = run.Once(it, static_cast<uint8_t>(i)) && valid;
    std::vector<double> took, copies;
    for (int i = 0; i < options.run.reps; ++i) {
      const auto begin = Clock::now();
      valid = run.Once(it, static_cast<uint8_t>(i)) && valid;
      took.push_back(std::chrono::duration<double>(Clock::now() - begin).count() * 1e6);
    }
    if (rank != 0) continue;
    const size_t bytes = run.Bytes(it);
    for (int i = 0; i < 50; ++i) copies.push_back(run.CopySeconds(bytes) * 1e6);
    const double median = Percentile(took, 50);
    PrintCase(options.run, it.Name(ranks, options.hosts),
              {{"ranks", absl::StrCat(ranks)},
               {"read_bytes", absl::StrCat(bytes)},
               {"median_us", JsonNumber(median)},
               {"p99_us", JsonNumber(Percentile(took, 99))},
               {"gb_per_s", JsonNumber(static_cast<double>(bytes) / median / 1e3)},
               {"copy_us", JsonNumber(Percentile(copies, 50))}},
              valid);
    std::fflush(stdout);
  }
  // Nobody leaves while another still reads.
  return run.Once({Kind::kGather, 64}, 0) && valid;
}

bool RunGroup(const Options& options, int ranks) {
  const std::string name = absl::StrCat("bench-", ::getpid(), "-", ranks);
  void* memory =
      ::mmap(nullptr, sizeof(Addresses), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  auto& addresses = *new (memory) Addresses();
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(RunRank(options, name, rank, ranks, addresses) ? 0 : 1);
    children.push_back(child);
  }
  bool valid = true;
  for (const pid_t child : children) {
    int status = 0;
    valid = ::waitpid(child, &status, 0) == child && WIFEXITED(status) &&
            WEXITSTATUS(status) == 0 && valid;
  }
  return valid;
}

int Run(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    int number = 0;
    const bool is_number = absl::SimpleAtoi(argv[i + 1], &number);
    if (flag == "--commit") {
      options.run.commit = argv[i + 1];
    } else if (flag == "--reps" && is_number && number > 0) {
      options.run.reps = number;
    } else if (flag == "--ranks" && is_number && number > 0 && number <= HostGroup::kRanksMax) {
      options.ranks = {number};
    } else if (flag == "--hosts" && is_number && number > 0 && number <= HostGroup::kRanksMax) {
      options.hosts = number;
    } else {
      std::fprintf(stderr,
                   "collective_bench [--ranks N] [--hosts N] [--reps N] [--commit ID]; not %s %s\n",
                   argv[i], argv[i + 1]);
      return 2;
    }
  }
  bool valid = true;
  for (const int ranks : options.ranks) valid = RunGroup(options, ranks) && valid;
  return valid ? 0 : 1;
}

}  // namespace
}  // namespace skein::bench

int main(int argc, char** argv) { return skein::bench::Run(argc, argv); }
