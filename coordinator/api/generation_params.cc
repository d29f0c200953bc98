// Common request fields: those that act, those that are accepted, those that are refused.
// Thread: any.
// Must never: narrow a number before its range was checked.
#include "coordinator/api/generation_params.h"

#include <charconv>
#include <limits>

#include "coordinator/api/repetition_guard.h"
#include "protocol/base/strings.h"
#include "protocol/json/json_writer.h"

namespace skein::coordinator {
namespace {

using protocol::Concat;
using protocol::JsonValue;

constexpr int64_t kChoicesMax = 8;
constexpr size_t kTokenListMax = 1024;
constexpr size_t kLogitBiasMax = 1024;
constexpr size_t kCacheSaltBytesMax = 128;
constexpr int64_t kDraftTokensMax = 63;  // more than any draft head; the server's bound wins
constexpr size_t kMetadataBytesMax = 16 * 1024;
constexpr double kTimeoutSecondsMax = 86'400;
constexpr std::string_view kNotYet = "is not supported by this server; leave it out";

void ReadSampling(FieldReader* reader, protocol::SamplingParams* sampling) {
  if (const auto value = reader->Double("temperature", 0, 2)) {
    sampling->temperature = static_cast<float>(*value);
  }
  if (const auto value = reader->Double("top_p", 0, 1)) {
    if (*value <= 0) reader->Invalid("top_p", "is 0; accepted: above 0 to 1");
    sampling->top_p = static_cast<float>(*value);
  }
  if (const auto value = reader->Double("min_p", 0, 1)) {
    sampling->min_p = static_cast<float>(*value);
  }
  if (const auto value = reader->Int("top_k", -1, std::numeric_limits<int32_t>::max())) {
    sampling->top_k = *value < 1 ? 0 : static_cast<int32_t>(*value);
  }
  if (const JsonValue* value = reader->Find("seed")) {
    const auto as_signed = value->AsInt64("seed");
    const auto as_unsigned = value->AsUint64("seed");
    if (as_signed.ok() || as_unsigned.ok()) {
      sampling->seed = as_signed.ok() ? static_cast<uint64_t>(*as_signed) : *as_unsigned;
      sampling->has_seed = true;
    } else {
      reader->Invalid("seed", Concat("is ", value->Describe(), "; expected a 64-bit integer"));
    }
  }
}

void ReadLengths(FieldReader* reader, const RequestLimits& limits, GenerationParams* params) {
  const auto plain = reader->Int("max_tokens", 1, limits.max_model_len);
  const auto completion = reader->Int("max_completion_tokens", 1, limits.max_model_len);
  if (plain.has_value() && completion.has_value() && *plain != *completion) {
    reader->Invalid("max_completion_tokens",
                    Concat("is ", *completion, " but max_tokens is ", *plain, "; send one"));
  }
  if (plain.has_value()) params->max_tokens = static_cast<int32_t>(*plain);
  if (completion.has_value()) params->max_tokens = static_cast<int32_t>(*completion);
  const int32_t max = params->max_tokens.value_or(limits.max_model_len);
  if (const auto value = reader->Int("min_tokens", 0, max)) {
    params->stop.min_tokens = static_cast<int32_t>(*value);
  }
}

void ReadStopString(FieldReader* reader, const std::string& name, const JsonValue& value,
                    GenerationParams* params) {
  if (!value.IsString()) return reader->WrongKind(name, value, "a string");
  const std::string_view text = value.string();
  if (text.empty() || text.size() > kStopBytesMax) {
    return reader->Invalid(name,
                           Concat("has ", text.size(), " bytes; accepted: 1 to ", kStopBytesMax));
  }
  params->stop_strings.strings.emplace_back(text);
}

// An array of at most `max` token ids.
void ReadIds(FieldReader* reader, const std::string& name, const JsonValue& list,
             const RequestLimits& limits, size_t max, std::vector<int32_t>* ids) {
  if (!list.IsArray()) return reader->WrongKind(name, list, "an array of token ids");
  if (list.elements().size() > max) {
    return reader->Invalid(
        name, Concat("has ", list.elements().size(), " ids; at most ", max, " are accepted"));
  }
  for (size_t i = 0; i < list.elements().size(); ++i) {
    const std::string path = Concat(name, "[", i, "]");
    const auto id = list.elements()[i].AsInt64(path, 0, limits.vocab_size - 1);
    if (!id.ok()) {
      return reader->Keep(InvalidValue(path, std::string(protocol::StatusText(id.status()))));
    }
    ids->push_back(static_cast<int32_t>(*id));
  }
}

void ReadStops(FieldReader* reader, const RequestLimits& limits, GenerationParams* params) {
  if (const JsonValue* value = reader->Find("stop")) {
    if (value->IsString()) {
      ReadStopString(reader, "stop", *value, params);
    } else if (!value->IsArray()) {
      reader->WrongKind("stop", *value, "a string or an array of strings");
    } else if (value->elements().size() > kStopStringsMax) {
      reader->Invalid("stop", Concat("has ", value->elements().size(), " strings; at most ",
                                     kStopStringsMax, " are accepted"));
    } else {
      for (size_t i = 0; i < value->elements().size(); ++i) {
        ReadStopString(reader, Concat("stop[", i, "]"), value->elements()[i], params);
      }
    }
  }
  params->stop_strings.include_in_output =
      reader->Bool("include_stop_str_in_output").value_or(false);
  if (const auto value = reader->Int("repetition_ngram", 0, kRepetitionNgramMax)) {
    params->repetition_ngram = static_cast<uint32_t>(*value);
  }
  params->stop.ignore_eos = reader->Bool("ignore_eos").value_or(false);
  if (const JsonValue* ids = reader->Find("stop_token_ids")) {
    ReadIds(reader, "stop_token_ids", *ids, limits, kTokenListMax, &params->stop.stop_token_ids);
  }
}

void ReadAllowedTokens(FieldReader* reader, const RequestLimits& limits,
                       std::vector<int32_t>* allowed) {
  const JsonValue* ids = reader->Find("allowed_token_ids");
  if (ids == nullptr) return;
  ReadIds(reader, "allowed_token_ids", *ids, limits, static_cast<size_t>(limits.vocab_size),
          allowed);
  if (ids->IsArray() && ids->elements().empty()) {
    reader->Invalid("allowed_token_ids", "is empty, so no token could follow; leave it out");
  }
}

void ReadBadWords(FieldReader* reader, std::vector<std::string>* words) {
  const JsonValue* list = reader->Find("bad_words");
  if (list == nullptr) return;
  if (!list->IsArray()) return reader->WrongKind("bad_words", *list, "an array of strings");
  if (list->elements().size() > kTokenListMax) {
    return reader->Invalid("bad_words", Concat("has ", list->elements().size(), " words; at most ",
                                               kTokenListMax, " are accepted"));
  }
  for (size_t i = 0; i < list->elements().size(); ++i) {
    const JsonValue& word = list->elements()[i];
    const std::string name = Concat("bad_words[", i, "]");
    if (!word.IsString()) return reader->WrongKind(name, word, "a string");
    if (word.string().empty() || word.string().size() > kStopBytesMax) {
      return reader->Invalid(
          name, Concat("has ", word.string().size(), " bytes; accepted: 1 to ", kStopBytesMax));
    }
    words->emplace_back(word.string());
  }
}

// The token that a key of logit_bias names; -1: none, or not in its one spelling.
int32_t TokenOfKey(std::string_view key, int32_t vocab_size) {
  int32_t token = -1;
  const auto end = key.data() + key.size();
  const auto result = std::from_chars(key.data(), end, token);
  const bool whole = result.ec == std::errc() && result.ptr == end;
  return whole && token >= 0 && token < vocab_size && std::to_string(token) == key ? token : -1;
}

void ReadLogitBias(FieldReader* reader, const RequestLimits& limits,
                   std::vector<protocol::TokenBias>* out) {
  const JsonValue* bias = reader->Find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->IsObject()) return reader->WrongKind("logit_bias", *bias, "an object");
  if (bias->members().size() > kLogitBiasMax) {
    return reader->Invalid(
        "logit_bias", Concat("has ", bias->members().size(), " entries; at most ", kLogitBiasMax,
                             " are accepted"));
  }
  FieldReader entries(*bias, "logit_bias.");
  for (const protocol::JsonMember& member : bias->members()) {
    const int32_t token = TokenOfKey(member.key, limits.vocab_size);
    if (token < 0) {
      reader->Invalid("logit_bias",
                      Concat("has the key ", JsonValue(std::string(member.key)).Describe(),
                             "; expected a token id from 0 to ", limits.vocab_size - 1));
    }
    const auto value = entries.Double(member.key, -100, 100);
    if (value.has_value()) out->push_back({token, static_cast<float>(*value)});
  }
  if (entries.error().has_value()) return reader->Keep(*entries.error());
}

void ReadLogprobs(FieldReader* reader, const RequestLimits& limits, RequestForm form,
                  protocol::SamplingParams* sampling) {
  if (form == RequestForm::kCompletion) {
    if (const auto value = reader->Int("logprobs", 0, limits.max_logprobs)) {
      sampling->logprobs = true;
      sampling->num_top_logprobs = static_cast<int32_t>(*value);
    }
    if (reader->Int("top_logprobs", 0, limits.max_logprobs).value_or(0) > 0) {
      reader->Unsupported("top_logprobs", "is a field of chat completions; give logprobs a number");
    }
    return;
  }
  sampling->logprobs = reader->Bool("logprobs").value_or(false);
  if (const auto value = reader->Int("top_logprobs", 0, limits.max_logprobs)) {
    if (!sampling->logprobs && *value > 0) {
      reader->Invalid("top_logprobs", Concat("is ", *value, " but logprobs is not true"));
    }
    sampling->num_top_logprobs = static_cast<int32_t>(*value);
  }
}

// After ReadStream.
void ReadPromptLogprobs(FieldReader* reader, const RequestLimits& limits,
                        GenerationParams* params) {
  const auto value = reader->Int("prompt_logprobs", 0, limits.max_logprobs);
  if (!value.has_value()) return;
  if (params->stream) {
    return reader->Invalid("prompt_logprobs", "is set with stream; ask for a whole answer");
  }
  params->prompt_logprobs = static_cast<int32_t>(*value);
}

void ReadStream(FieldReader* reader, GenerationParams* params) {
  params->stream = reader->Bool("stream").value_or(false);
  const JsonValue* options = reader->Find("stream_options");
  if (options == nullptr) return;
  if (!options->IsObject()) return reader->WrongKind("stream_options", *options, "an object");
  if (!params->stream) return reader->Invalid("stream_options", "is set but stream is not true");
  FieldReader fields(*options, "stream_options.");
  params->include_usage = fields.Bool("include_usage").value_or(false);
  params->continuous_usage = fields.Bool("continuous_usage_stats").value_or(false);
  params->per_token = fields.Bool("per_token").value_or(false);
  if (fields.error().has_value()) reader->Keep(*fields.error());
}

// What the request says of drafts; how they are accepted follows from it and from the sampling.
void ReadSpeculation(FieldReader* reader, GenerationParams* params) {
  protocol::SpeculationParams& speculation = params->speculation;
  const bool greedy = params->sampling.temperature < protocol::kGreedyTemperature;
  std::optional<size_t> named;
  if (const JsonValue* value = reader->Find("speculation")) {
    if (!value->IsObject()) return reader->WrongKind("speculation", *value, "an object");
    FieldReader fields(*value, "speculation.");
    speculation.enabled = fields.Bool("enabled").value_or(true);
    if (const auto drafts = fields.Int("max_draft_tokens", 0, kDraftTokensMax)) {
      speculation.max_draft_tokens = static_cast<uint32_t>(*drafts);
    }
    named = fields.Choice("verification", {"rejection", "coupled"});
    if (fields.error().has_value()) return reader->Keep(*fields.error());
    if (const auto unknown = fields.UnknownNames(); !unknown.empty()) {
      return reader->Invalid(fields.Path(unknown.front()),
                             "is unknown; accepted: enabled, max_draft_tokens, verification");
    }
  }
  // A sequence that never drafts needs no draft head.
  speculation.enabled = speculation.enabled && speculation.max_draft_tokens > 0;
  const bool coupled = named.has_value() ? *named == 1 : params->sampling.has_seed;
  speculation.mode = greedy    ? protocol::VerificationMode::kGreedy
                     : coupled ? protocol::VerificationMode::kCoupled
                               : protocol::VerificationMode::kRejection;
}

// Fields that have no effect.
void ReadAccepted(FieldReader* reader, GenerationParams* params) {
  for (std::string_view name : {"user", "service_tier", "safety_identifier", "prompt_cache_key"}) {
    reader->String(name);
  }
  reader->Bool("store");
  if (const JsonValue* metadata = reader->Find("metadata")) {
    if (!metadata->IsObject()) {
      reader->WrongKind("metadata", *metadata, "an object");
    } else if (protocol::WriteJson(*metadata).size() > kMetadataBytesMax) {
      reader->Invalid("metadata", Concat("is longer than ", kMetadataBytesMax, " bytes of JSON"));
    }
  }
  if (const auto salt = reader->String("cache_salt")) {
    const bool good = salt->find_first_not_of(
                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                          "0123456789._-") == std::string_view::npos;
    if (!good || salt->size() > kCacheSaltBytesMax) {
      reader->Invalid("cache_salt", Concat("must have 0 to ", kCacheSaltBytesMax,
                                           " characters of A-Z a-z 0-9 . _ -"));
    }
    params->cache_salt = std::string(*salt);
  }
}

// Fields of other servers' and later versions: their default is accepted, anything else refused.
void ReadRefused(FieldReader* reader) {
  for (std::string_view name : {"structured_outputs", "guided_json", "guided_regex",
                                "guided_grammar", "guided_choice", "chat_template"}) {
    if (reader->Find(name) != nullptr) reader->Unsupported(name, kNotYet);
  }
  if (reader->Bool("use_beam_search").value_or(false)) {
    reader->Unsupported("use_beam_search", kNotYet);
  }
}

}  // namespace

bool ReadPenalties(FieldReader* reader, Penalties penalties, protocol::LogitEdits* edits) {
  struct Penalty {
    std::string_view name;
    double min;
    float* value;
  };
  bool all_act = true;
  for (const Penalty& penalty : {Penalty{"presence_penalty", -2, &edits->presence_penalty},
                                 Penalty{"frequency_penalty", -2, &edits->frequency_penalty},
                                 Penalty{"repetition_penalty", 0, &edits->repetition_penalty}}) {
    const auto value = reader->Double(penalty.name, penalty.min, 2);
    if (!value.has_value()) continue;
    const auto narrowed = static_cast<float>(*value);
    if (penalty.min == 0 && narrowed <= 0) {
      reader->Invalid(penalty.name, "is 0; accepted: above 0 to 2");
    } else if (penalties == Penalties::kApply) {
      *penalty.value = narrowed;
    } else {
      all_act = all_act && narrowed == *penalty.value;
    }
  }
  return all_act;
}

GenerationParams ReadGenerationParams(FieldReader* reader, const RequestLimits& limits,
                                      RequestForm form) {
  GenerationParams params;
  if (const auto model = reader->String("model")) {
    params.model = std::string(*model);
    if (model->empty()) reader->Invalid("model", "is empty; leave it out or name a served model");
  }
  ReadLengths(reader, limits, &params);
  ReadSampling(reader, &params.sampling);
  ReadStops(reader, limits, &params);
  ReadLogprobs(reader, limits, form, &params.sampling);
  params.sampling.processed_logprobs = limits.processed_logprobs && params.sampling.logprobs;
  ReadAllowedTokens(reader, limits, &params.edits.allowed_tokens);
  ReadBadWords(reader, &params.bad_words);
  ReadLogitBias(reader, limits, &params.edits.bias);
  params.n = static_cast<uint32_t>(reader->Int("n", 1, kChoicesMax).value_or(1));
  params.return_ids = reader->Bool("return_token_ids").value_or(false);
  params.tokens_as_ids = reader->Bool("return_tokens_as_token_ids").value_or(false);
  ReadStream(reader, &params);
  ReadPromptLogprobs(reader, limits, &params);
  if (const auto priority = reader->Int("priority", -100, 100)) {
    params.priority = static_cast<int32_t>(*priority);
  }
  ReadSpeculation(reader, &params);
  ReadAccepted(reader, &params);
  ReadRefused(reader);
  return params;
}

ApiOr<std::optional<double>> ReadTimeout(std::string_view header) {
  if (header.empty()) return std::optional<double>();
  double seconds = 0;
  const auto result = std::from_chars(header.data(), header.data() + header.size(), seconds);
  if (result.ec != std::errc() || result.ptr != header.data() + header.size() || !(seconds > 0) ||
      seconds > kTimeoutSecondsMax) {
    return InvalidValue("x-request-timeout",
                        "the header x-request-timeout must be a number of seconds above 0 to "
                        "86400");
  }
  return std::optional<double>(seconds);
}

}  // namespace skein::coordinator
