// Names of all operators and what a variant declares about itself.
#pragma once

#include <cstdint>
#include <string_view>

namespace skein::kernels {

enum class OpId : uint8_t {
  // quant
  kPerTokenCast,
  kCastBack,
  kFakeQuant,
  // gemm
  kLinear,
  kGroupedLinear,
  kExpertLinear,
  // norm_rope
  kRmsNorm,
  kRope,
  // hyper_connection
  kHcExpand,
  kHcMix,
  kHcCollapse,
  kHcPost,
  kHcMean,
  // moe
  kMoeGate,
  kMoeLayout,
  kSwiGlu,
  kMoeCombine,
  kMapExperts,
  // engram
  kEngramHash,
  kEngramGather,
  kEngramFusedWeight,
  kEngramGate,
  // compressor
  kCompress,
  // kv_cache
  kStoreKv,
  kLoadKv,
  kCopyKvRows,
  kGatherRows,
  // indexer
  kIndexScores,
  kCandidateBlocks,
  kTopK,
  // attention
  kSparseAttention,
  // sampling
  kSampleTokens,
  kVerifyDrafts,
  kEditLogits,
  // draft
  kPlaceDrafts,
  kCount,
};

inline constexpr int kNumOps = static_cast<int>(OpId::kCount);

// "linear", "sparse_attention", ...: the spelling of manifests, metrics and messages.
std::string_view OpName(OpId op);

// The operator of that name; false if there is none.
bool ParseOpName(std::string_view name, OpId& op);

// Determinism classes of the contracts.
enum class DeterminismClass : uint8_t {
  kBitwise,         // equal to the oracle in every byte
  kBatchInvariant,  // a row's bits depend on that row alone; tolerance against the oracle
  kStatistical,     // the distribution is the contract, plus reproducibility from the seed
};

struct KernelTraits {
  std::string_view arch;    // "any", "x86-64", "sm_90a"
  bool capturable = false;  // may be part of a captured graph
  DeterminismClass determinism = DeterminismClass::kBatchInvariant;
};

}  // namespace skein::kernels
