// The shapes, ratios, schedules and formats of a DeepSeek-V4.1 model, read from config.json and
// checked before anything is allocated. Immutable after Load; any thread may read it. No layer
// holds a size of its own: everything comes from here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "protocol/json/json.h"

namespace skein::worker {

enum class ExpertFormat : uint8_t { kFp4, kFp8 };

// Rotary rows recorded elsewhere, used in place of computed ones: recorded results can only be
// reproduced to the bit with the sines of the machine that made them.
//   plain, compress [positions, rope_dim]: per row rope_dim/2 cosines, then as many sines
struct RecordedRope {
  int64_t positions = 0;
  std::vector<float> plain, compress;
};

// Rotary embedding of the layers that compress (YaRN) and of those that do not (plain).
struct RopeSpec {
  double plain_theta = 10000;
  double compress_theta = 160000;
  double factor = 16;
  double original_max_position = 65536;
  double beta_fast = 32;
  double beta_slow = 1;
  std::shared_ptr<const RecordedRope> recorded;  // null: every row is computed
};

// N-gram memory (model section 3.10). One entry per Engram layer in `layers`, `rows`,
// `multipliers` and `primes`.
struct EngramSpec {
  std::vector<int> layers;
  std::vector<int64_t> rows;  // table rows of each layer
  int ngram = 0;              // longest n-gram
  int heads = 0;
  int head_dim = 0;
  int pad_token = 2;
  std::vector<std::vector<int64_t>> multipliers;  // [layer][ngram]
  std::vector<std::vector<int64_t>> primes;       // [layer][(ngram-1)*heads]
  std::string token_map_file;                     // int32[vocab], in the model directory
  int columns() const { return (ngram - 1) * heads; }
};

// Where the draft head taps the residual stream of a target layer: before the layer, Engram
// included, or after it. The published V4.1 code taps before; the V4 refreshes tapped after.
enum class TapSide : uint8_t { kEntering, kLeaving };

// Block drafting (model section 3.12).
struct DSparkSpec {
  int stages = 0;
  int block = 0;
  int noise_token = 0;
  std::vector<int> target_layers;
  TapSide tap_side = TapSide::kEntering;  // not in config.json: a choice of the configuration
  int markov_rank = 0;
  int num_experts = 0;
  int experts_per_token = 0;
};

// What one layer does, derived from the schedules.
struct LayerSpec {
  int ratio = 0;                  // 0: window only
  bool kv_source = false;         // owns compressor, index keys and compressed rows
  bool index_source = false;      // scores and selects
  bool candidate_source = false;  // publishes candidate blocks
  bool uses_candidates = false;   // its selection is restricted to them
  int kv_layer = -1;              // layer whose compressed rows and index keys it reads
  int engram_index = -1;          // index into EngramSpec, or -1
  int tap_index = -1;             // index among the draft head's target layers, or -1
};

struct ModelSpec {
  // Reads DIR/config.json. Errors name file, key and value.
  static absl::StatusOr<ModelSpec> Load(const std::filesystem::path& dir);
  // Same from parsed JSON; `source` is the file name that errors carry.
  static absl::StatusOr<ModelSpec> FromJson(const protocol::JsonValue& config,
                                            const std::string& source);

  int vocab = 0;
  int hidden = 0;  // D
  int expert_inner = 0;
  int num_layers = 0;
  int heads = 0;
  int head_dim = 0;
  int rope_dim = 0;
  int q_rank = 0;
  int o_rank = 0;  // per group
  int o_groups = 0;
  int window = 0;
  float norm_eps = 0;
  int num_experts = 0;
  int experts_per_token = 0;
  float gate_temp = 1;
  bool norm_topk = true;
  float route_scale = 1;
  float swiglu_limit = 0;
  RopeSpec rope;
  int index_heads = 0;
  int index_dim = 0;
  int index_topk = 0;
  int hc = 0;
  int sinkhorn_iters = 0;
  float hc_eps = 0;
  int candidate_blocks = 0;
  int candidate_block = 0;
  int weight_block = 32;
  ExpertFormat expert_format = ExpertFormat::kFp4;
  EngramSpec engram;
  DSparkSpec dspark;
  int bos_token = 0;
  int eos_token = 1;
  int64_t max_position = 0;
  std::vector<LayerSpec> layers;
  // Hash of config.json's text: what two processes compare to know that they mean the same model.
  std::string identity;

  // Least common multiple of the compression ratios: a cache block holds a multiple of it.
  int block_multiple() const;
  // Weight and state slots of the window ring: window plus the largest draft.
  // Tokens before a position whose computation rebuilds the whole state at it: each layer looks a
  // window further back than the one after it, the draft head one more.
  int recompute_tokens() const { return (num_layers + 1) * window + engram.ngram; }
  int ring_rows() const { return window + dspark.block + 1; }
};

// Rows of the rotary tables: out[2*i] ... as kernels::Rope wants them: rope_dim/2 cosines then as
// many sines for each position. `compress` picks the YaRN table. Angles are the f32 product
// position * inv_freq (model section 3.4).
class RopeTable {
 public:
  RopeTable(const RopeSpec& spec, int rope_dim, bool compress);
  void FillRow(int64_t position, float* out) const;
  const std::vector<float>& inv_freq() const { return inv_freq_; }

 private:
  std::vector<float> inv_freq_;
  std::shared_ptr<const RecordedRope> recorded_;
  bool compress_;
};

}  // namespace skein::worker
