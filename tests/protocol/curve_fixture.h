// Keys of a coordinator and a worker in a directory of their own, with the allow-list between them.
// Owns the directory. One thread. Must never be used outside tests and benchmarks.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "protocol/transport/curve_keys.h"

namespace skein::tests {

class CurveFixture {
 public:
  CurveFixture() {
    char path[] = "/tmp/skein_curve_XXXXXX";
    directory_ = ::mkdtemp(path);
    server_key_ = NewPair("coordinator");
    Allow(NewPair("worker"));
  }
  ~CurveFixture() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  CurveFixture(const CurveFixture&) = delete;
  CurveFixture& operator=(const CurveFixture&) = delete;

  // Makes a pair in the file of this name; its public key.
  std::string NewPair(const std::string& name) const {
    auto key = protocol::WriteNewCurveKeys(path(name));
    if (!key.ok()) throw std::runtime_error(key.status().ToString());
    return *key;
  }
  // Replaces the allow-list, at once for whoever reads it.
  void Allow(const std::string& lines) const {
    std::ofstream(path("allowed.next")) << lines << '\n';
    std::filesystem::rename(path("allowed.next"), path("allowed"));
  }
  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  const std::string& server_key() const { return server_key_; }

  protocol::CurveKeys Coordinator() const {
    return Load({"", path("coordinator"), path("allowed")}, protocol::CurveSide::kCoordinator);
  }
  protocol::CurveKeys Worker(const std::string& name = "worker",
                             const std::string& server_key = "") const {
    return Load({server_key.empty() ? server_key_ : server_key, path(name), ""},
                protocol::CurveSide::kWorker);
  }

 private:
  static protocol::CurveKeys Load(const protocol::CurveFiles& files, protocol::CurveSide side) {
    auto keys = protocol::LoadCurveKeys(files, side);
    if (!keys.ok()) throw std::runtime_error(keys.status().ToString());
    return *keys;
  }

  std::string directory_;
  std::string server_key_;
};

}  // namespace skein::tests
