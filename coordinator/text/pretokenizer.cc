// Pre-token patterns in PCRE2 with JIT, Unicode properties and limits.
// Owns: compiled code; the match state lives for one call.
// Thread: const after Create.
// Must never: match text that was not checked to be UTF-8.
#include "coordinator/text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <algorithm>
#include <array>
#include <utility>

#include <pcre2.h>

namespace skein::coordinator {
namespace {

constexpr size_t kPatternBytesMax = 4096;
constexpr uint32_t kNestingMax = 32;
constexpr uint32_t kHeapKibMax = 16 * 1024;
constexpr uint32_t kStepsBase = 1'000'000;
constexpr uint32_t kStepsPerByte = 32;
constexpr size_t kJitStackBytesMin = 32 * 1024;
constexpr size_t kJitStackBytesMax = 1024 * 1024;

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Code = std::unique_ptr<pcre2_code, Freer<pcre2_code_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Freer<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Freer<pcre2_jit_stack_free>>;

std::string ErrorText(int code) {
  std::array<unsigned char, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

// What one call needs besides the pattern.
struct MatchState {
  JitStack stack{pcre2_jit_stack_create(kJitStackBytesMin, kJitStackBytesMax, nullptr)};
  MatchContext context{pcre2_match_context_create(nullptr)};
  MatchData data{pcre2_match_data_create(1, nullptr)};

  explicit MatchState(size_t text_bytes) {
    const size_t steps = kStepsBase + kStepsPerByte * text_bytes;
    pcre2_set_match_limit(context.get(), static_cast<uint32_t>(std::min<size_t>(steps, ~0u)));
    pcre2_set_heap_limit(context.get(), kHeapKibMax);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

}  // namespace

struct Pretokenizer::Pattern {
  std::string text;
  Code code;
  bool has_machine_code = false;

  int Match(std::string_view piece, size_t at, const MatchState& state) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(piece.data());
    if (has_machine_code) {  // the direct call checks neither arguments nor UTF-8
      return pcre2_jit_match(code.get(), subject, piece.size(), at, 0, state.data.get(),
                             state.context.get());
    }
    return pcre2_match(code.get(), subject, piece.size(), at, PCRE2_NO_UTF_CHECK, state.data.get(),
                       state.context.get());
  }

  absl::Status Split(std::string_view piece, const MatchState& state,
                     std::vector<std::string_view>* pieces) const {
    size_t done = 0;
    for (size_t at = 0; at < piece.size();) {
      const int count = Match(piece, at, state);
      if (count == PCRE2_ERROR_NOMATCH) break;
      if (count < 0) {
        return absl::ResourceExhaustedError("pre-tokenizer pattern gave up on a text of " +
                                            std::to_string(piece.size()) +
                                            " bytes: " + ErrorText(count));
      }
      const size_t* range = pcre2_get_ovector_pointer(state.data.get());
      const size_t begin = range[0];
      const size_t end = range[1];
      if (end <= begin) {  // an empty match splits nothing
        at = std::max(at, end) + 1;
        while (at < piece.size() && (static_cast<unsigned char>(piece[at]) & 0xC0) == 0x80) ++at;
        continue;
      }
      if (begin > done) pieces->push_back(piece.substr(done, begin - done));
      pieces->push_back(piece.substr(begin, end - begin));
      done = at = end;
    }
    if (done < piece.size()) pieces->push_back(piece.substr(done));
    return absl::OkStatus();
  }
};

Pretokenizer::Pretokenizer(std::vector<std::unique_ptr<Pattern>> patterns)
    : patterns_(std::move(patterns)) {}

Pretokenizer::~Pretokenizer() = default;

absl::StatusOr<std::unique_ptr<Pretokenizer>> Pretokenizer::Create(
    std::span<const std::string> patterns) {
  std::vector<std::unique_ptr<Pattern>> compiled;
  for (const std::string& text : patterns) {
    const std::string name = "pre-tokenizer pattern " + std::to_string(compiled.size());
    if (text.size() > kPatternBytesMax) {
      return absl::InvalidArgumentError(name + " has " + std::to_string(text.size()) +
                                        " bytes; at most " + std::to_string(kPatternBytesMax) +
                                        " are accepted");
    }
    CompileContext context(pcre2_compile_context_create(nullptr));
    pcre2_set_parens_nest_limit(context.get(), kNestingMax);
    int error = 0;
    size_t offset = 0;
    Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                            context.get()));
    if (code == nullptr) {
      return absl::InvalidArgumentError(name + " is refused at byte " + std::to_string(offset) +
                                        ": " + ErrorText(error));
    }
    const int jit = pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
    if (jit != 0 && jit != PCRE2_ERROR_JIT_BADOPTION) {
      return absl::InvalidArgumentError(name + " cannot be compiled: " + ErrorText(jit));
    }
    compiled.push_back(std::make_unique<Pattern>(Pattern{text, std::move(code), jit == 0}));
  }
  return std::unique_ptr<Pretokenizer>(new Pretokenizer(std::move(compiled)));
}

absl::StatusOr<std::vector<std::string_view>> Pretokenizer::Split(std::string_view text) const {
  std::vector<std::string_view> pieces;
  if (!text.empty()) pieces.push_back(text);
  const MatchState state(text.size());
  for (const std::unique_ptr<Pattern>& pattern : patterns_) {
    std::vector<std::string_view> next;
    next.reserve(std::max(pieces.size(), text.size() / 4));
    for (std::string_view piece : pieces) {
      const absl::Status status = pattern->Split(piece, state, &next);
      if (!status.ok()) return status;
    }
    pieces = std::move(next);
  }
  return pieces;
}

}  // namespace skein::coordinator
