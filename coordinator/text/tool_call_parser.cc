// The DSML syntax of V4.1, one symbol (a byte or the DSML token) at a time: where the input is cut
// cannot matter.
// Thread: one object is used by one thread.
// Must never: show half a tag as an argument.
#include "coordinator/text/tool_call_parser.h"

#include <algorithm>
#include <utility>

#include "protocol/json/json.h"
#include "protocol/json/json_writer.h"

namespace skein::coordinator {
namespace {

constexpr std::string_view kDsmlText = "｜DSML｜";
// Tags with the mark byte for the DSML token.
constexpr std::string_view kBlockOpen = "<\xFF calls>";
constexpr std::string_view kBlockClose = "</\xFF calls>";
constexpr std::string_view kCallOpen = "<\xFF invoke name=\"";
constexpr std::string_view kCallClose = "</\xFF invoke>";
constexpr std::string_view kParameterOpen = "<\xFF parameter name=\"";
constexpr std::string_view kParameterClose = "</\xFF parameter>";
constexpr std::string_view kStringEnd = "\" string=\"true\">";
constexpr std::string_view kJsonEnd = "\" string=\"false\">";

// A JSON string without its quotes.
std::string Escaped(std::string_view text) {
  std::string quoted;
  protocol::AppendJsonString(text, &quoted);
  return quoted.substr(1, quoted.size() - 2);
}

// What stands between `begin` and `end`, when the tag has both and no quote between them.
bool NameIn(std::string_view tag, std::string_view begin, std::string_view end,
            std::string_view* name) {
  if (!tag.starts_with(begin) || !tag.ends_with(end)) return false;
  if (tag.size() <= begin.size() + end.size()) return false;
  *name = tag.substr(begin.size(), tag.size() - begin.size() - end.size());
  return name->find('"') == std::string_view::npos;
}

// What was read of a tag may become one that opens a block or a call.
bool MayOpen(std::string_view tag) {
  return kBlockOpen.starts_with(tag) || kCallOpen.starts_with(tag) || tag.starts_with(kCallOpen);
}

bool IsSpace(int symbol) {
  return symbol == '\n' || symbol == ' ' || symbol == '\t' || symbol == '\r';
}

}  // namespace

void AppendCallDelta(ToolCallDelta delta, std::vector<ToolCallDelta>* list) {
  if (list->empty() || !delta.id.empty() || !list->back().id.empty() ||
      list->back().index != delta.index) {
    return list->push_back(std::move(delta));
  }
  ToolCallDelta& last = list->back();
  last.arguments += delta.arguments;
  if (!delta.closes) return;
  last.closes = true;
  last.original = std::move(delta.original);
}

ToolCallParser::ToolCallParser(ToolCallOptions options) : options_(std::move(options)) {}

void ToolCallParser::Text(std::string_view bytes, Output* out) {
  for (const char byte : bytes) Symbol(static_cast<uint8_t>(byte), out);
}

void ToolCallParser::Mark(Output* out) { Symbol(kMark, out); }

void ToolCallParser::Symbol(int symbol, Output* out) {
  if (place_ == Place::kDone) return;
  if (place_ == Place::kContent) return OnContent(symbol, out);
  if (symbol == kMark) {
    kept_ += kDsmlText;
    if (!original_.empty()) original_.emplace_back();
  } else {
    kept_.push_back(static_cast<char>(symbol));
    if (!original_.empty()) original_.back().push_back(static_cast<char>(symbol));
  }
  if (place_ == Place::kValue) return OnValue(symbol, out);
  if (!tag_.empty()) return OnTag(symbol, out);
  OnBetween(symbol, out);
}

// Holds back what may be the blank line and the first byte of a block, nothing longer.
void ToolCallParser::OnContent(int symbol, Output* out) {
  if (symbol == kMark) {
    if (!held_.ends_with('<')) {
      ShowHeld(out);
      out->content += kDsmlText;
      return;
    }
    is_strict_ = held_ == "\n\n<";
    kept_ = std::exchange(held_, {}) + std::string(kDsmlText);
    tag_ = {'<', kMarkByte};
    original_ = {"<", ""};
    place_ = Place::kOpening;
    return;
  }
  const char byte = static_cast<char>(symbol);
  if (options_.tools.empty()) {
    out->content.push_back(byte);
  } else if (byte == '\n') {
    if (held_ == "\n\n") {
      out->content.push_back('\n');
    } else if (held_ == "\n") {
      held_ = "\n\n";
    } else {
      ShowHeld(out);
      held_ = "\n";
    }
  } else if (byte == '<') {
    if (held_ != "\n\n") ShowHeld(out);
    held_.push_back('<');
  } else {
    ShowHeld(out);
    out->content.push_back(byte);
  }
}

void ToolCallParser::ShowHeld(Output* out) { out->content += std::exchange(held_, {}); }

// Between tags: white space, and the begin of the next tag.
void ToolCallParser::OnBetween(int symbol, Output* out) {
  if (symbol == '<') {
    tag_ = "<";
    if (place_ == Place::kBlock) original_ = {"<"};
    return;
  }
  if (!IsSpace(symbol)) Fail(symbol, out);
}

void ToolCallParser::OnTag(int symbol, Output* out) {
  // The byte of the mark is no part of any text: another stands for it, just as wrong.
  tag_.push_back(symbol == kMark ? kMarkByte : static_cast<char>(symbol));
  if (symbol == static_cast<uint8_t>(kMarkByte)) tag_.back() = '\xFE';
  if (tag_.size() > kTagBytesMax || symbol == '\n') return Fail(symbol, out);
  if (place_ == Place::kOpening && !MayOpen(tag_)) return Fail(symbol, out);
  const bool in_quotes = std::count(tag_.begin(), tag_.end(), '"') % 2 == 1;
  if (symbol == '>' && !in_quotes) EndTag(out);
}

void ToolCallParser::EndTag(Output* out) {
  bool fits = false;
  switch (place_) {
    case Place::kOpening:
      fits = tag_ == kBlockOpen;
      in_block_ = fits;
      is_strict_ = is_strict_ && fits;
      place_ = Place::kBlock;
      fits = fits || OpenCall(out);
      if (in_block_) original_.clear();
      break;
    case Place::kBlock:
      if (tag_ == kBlockClose) {
        place_ = Place::kDone;
        // A wrapper around nothing is no block.
        fits = in_block_ && num_closed_ > 0;
      } else {
        fits = OpenCall(out);
      }
      break;
    case Place::kCall:
      fits = tag_ == kCallClose ? CloseCall(out) : OpenParameter(out);
      break;
    case Place::kContent:
    case Place::kValue:
    case Place::kDone:
      break;
  }
  if (!fits) return Fail('>', out);
  tag_.clear();
}

const DeclaredTool* ToolCallParser::Find(std::string_view name) const {
  for (const DeclaredTool& tool : options_.tools) {
    if (tool.name == name) return &tool;
  }
  return nullptr;
}

bool ToolCallParser::OpenCall(Output* out) {
  std::string_view name;
  if (!NameIn(tag_, kCallOpen, "\">", &name)) return false;
  tool_ = Find(name);
  if (tool_ == nullptr) return false;
  parameters_.clear();
  is_recovered_ = !is_strict_;
  place_ = Place::kCall;
  const size_t index = num_opened_++;
  Emit({index, options_.call_id(index), tool_->name, {}, false, {}}, out);
  EmitArguments("{", out);
  return true;
}

bool ToolCallParser::OpenParameter(Output* out) {
  std::string_view bytes;
  is_string_ = NameIn(tag_, kParameterOpen, kStringEnd, &bytes);
  if (!is_string_ && !NameIn(tag_, kParameterOpen, kJsonEnd, &bytes)) return false;
  // As it will be shown: names that differ in broken bytes alone are one.
  Detokenizer shown;
  std::string name = shown.Append(bytes);
  name += shown.Finish();
  if (std::find(parameters_.begin(), parameters_.end(), name) != parameters_.end()) return false;
  std::string key = parameters_.empty() ? "" : ",";
  protocol::AppendJsonString(name, &key);
  EmitArguments(key + (is_string_ ? ":\"" : ":"), out);
  parameters_.push_back(std::move(name));
  value_.clear();
  text_ = Detokenizer();
  place_ = Place::kValue;
  return true;
}

// `held_` is what of the close tag was read; it begins with the only '<' of the tag.
void ToolCallParser::OnValue(int symbol, Output* out) {
  const char byte = symbol == kMark ? kMarkByte : static_cast<char>(symbol);
  const bool is_mark_byte = symbol == static_cast<uint8_t>(kMarkByte);
  if (!is_mark_byte && byte == kParameterClose[held_.size()]) {
    held_.push_back(byte);
    if (held_.size() < kParameterClose.size()) return;
    held_.clear();
    return CloseParameter(out);
  }
  // The token stands in tags alone.
  if (symbol == kMark || held_.find(kMarkByte) != std::string::npos) {
    return Fail(symbol, out);
  }
  for (const char part : std::exchange(held_, {})) AddValue(part, out);
  if (byte == '<') {
    held_ = "<";
  } else {
    AddValue(byte, out);
  }
}

void ToolCallParser::AddValue(char byte, Output* out) {
  if (!is_string_) return value_.push_back(byte);
  const std::string text = text_.Append(std::string_view(&byte, 1));
  if (!text.empty()) EmitArguments(Escaped(text), out);
}

void ToolCallParser::CloseParameter(Output* out) {
  place_ = Place::kCall;
  if (is_string_) return EmitArguments(Escaped(text_.Finish()) + "\"", out);
  // With the object around it, too, it is not too deep.
  constexpr protocol::JsonLimits kLimits = {.depth_max = protocol::JsonLimits().depth_max - 1};
  if (protocol::ParseJson(value_, kLimits).ok()) return EmitArguments(value_, out);
  is_recovered_ = true;
  std::string text;
  protocol::AppendJsonString(value_, &text);
  EmitArguments(text, out);
}

bool ToolCallParser::CloseCall(Output* out) {
  const auto is_given = [&](const std::string& name) {
    return std::find(parameters_.begin(), parameters_.end(), name) != parameters_.end();
  };
  const auto& required = tool_->required;
  if (!is_strict_ && !std::all_of(required.begin(), required.end(), is_given)) return false;
  ToolCallDelta last;
  last.index = num_opened_ - 1;
  last.arguments = "}";
  last.closes = true;
  last.original = std::exchange(original_, {});
  Emit(std::move(last), out);
  for (ToolCallDelta& delta : pending_) AppendCallDelta(std::move(delta), &out->calls);
  pending_.clear();
  kept_.clear();
  ++num_closed_;
  Count(is_recovered_ ? ParseResult::kRecovered : ParseResult::kOk);
  tool_ = nullptr;
  place_ = Place::kBlock;
  return true;
}

void ToolCallParser::EmitArguments(std::string text, Output* out) {
  ToolCallDelta delta;
  delta.index = num_opened_ - 1;
  delta.arguments = std::move(text);
  Emit(std::move(delta), out);
}

void ToolCallParser::Emit(ToolCallDelta delta, Output* out) {
  AppendCallDelta(std::move(delta), is_strict_ ? &out->calls : &pending_);
  if (is_strict_) kept_.clear();
}

void ToolCallParser::Fail(int symbol, Output* out) {
  // White space after a call without wrapper is followed by content: that is no broken call.
  if (in_block_ || tool_ != nullptr || !tag_.empty()) Count(ParseResult::kMalformed);
  if (!is_strict_ && tool_ != nullptr) --num_opened_;
  std::string kept = std::exchange(kept_, {});
  tag_.clear();
  pending_.clear();
  original_.clear();
  tool_ = nullptr;
  in_block_ = is_strict_ = false;
  place_ = Place::kContent;
  // The last symbol and what stands before it may begin a block.
  kept.resize(kept.size() - (symbol == kMark ? kDsmlText.size() : 1));
  held_.clear();
  size_t begin = kept.size();
  if (begin > 0 && kept[begin - 1] == '<') --begin;
  const size_t newlines = begin - (kept.find_last_not_of('\n', begin - 1) + 1);
  const bool is_bare = begin == kept.size();
  if (begin > 0 && (newlines >= 2 || is_bare)) begin -= std::min<size_t>(newlines, 2);
  held_ = kept.substr(begin);
  kept.resize(begin);
  out->content += kept;
  OnContent(symbol, out);
}

void ToolCallParser::Finish(Output* out) {
  if (place_ == Place::kContent) return ShowHeld(out);
  if (place_ == Place::kDone) return;
  if (tool_ != nullptr || !tag_.empty() || in_block_) Count(ParseResult::kUnclosed);
  // Of a block that was cut nothing is shown that did not become a delta.
  if (!is_strict_) out->content += kept_;
  kept_.clear();
  place_ = Place::kDone;
}

}  // namespace skein::coordinator
