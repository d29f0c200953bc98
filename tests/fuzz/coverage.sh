#!/usr/bin/env bash
# Prints which part of the lines of each parser its corpus reaches; those of a build with the preset
# `fuzz`, whose targets count them.
# Usage: coverage.sh [BUILD] (build/fuzz). Exit 0: 80 % or more of each.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=${1:-build/fuzz}
llvm_cov=$(command -v llvm-cov-14 || command -v llvm-cov)
llvm_profdata=$(command -v llvm-profdata-14 || command -v llvm-profdata)

# Target and the files of its parser.
parsers() {
  cat <<'LIST'
api_keys coordinator/api/api_keys.cc
bench_workload worker/node/commands/bench_workload.cc
call_grammar coordinator/text/call_grammar.cc coordinator/text/grammar_matcher.cc coordinator/text/token_trie.cc
chat_request coordinator/api/chat_request.cc coordinator/api/generation_params.cc coordinator/api/field_reader.cc
checkpoint worker/model/checkpoint.cc
codec protocol/codec/codec.cc protocol/codec/edits_codec.cc protocol/codec/moves_codec.cc protocol/codec/scores_codec.cc
completion_request coordinator/api/completion_request.cc coordinator/api/raw_prompts.cc
config protocol/config/config.cc protocol/config/yaml_reader.cc protocol/config/speculative_config.cc
curve_keys protocol/transport/curve_keys.cc
detokenizer coordinator/text/detokenizer.cc
encoding_resource coordinator/text/chat_template.cc
fault_list protocol/config/fault_list.cc protocol/config/admin_address.cc
frame protocol/transport/frame.cc
json protocol/json/json.cc protocol/json/utf8.cc
json_writer protocol/json/json_writer.cc protocol/base/control_bytes.cc
messages_request coordinator/api/anthropic_messages.cc
model_config worker/model/model_spec.cc
output_parser coordinator/text/output_parser.cc
request_reader protocol/http/request_reader.cc protocol/http/request_admission.cc
response_reader protocol/http/response_reader.cc protocol/http/event_splitter.cc protocol/http/response_framing.cc
session protocol/transport/session.cc
sse_writer coordinator/api/sse_writer.cc
tokenizer_file coordinator/text/tokenizer.cc coordinator/text/pretokenizer.cc
tokenizer_text coordinator/text/byte_pair_merger.cc coordinator/text/special_token_trie.cc
tool_call_parser coordinator/text/tool_call_parser.cc
LIST
}

mkdir -p "$build/fuzz"
least=100
count=0
while read -r target files; do
  profile="$build/fuzz/$target"
  LLVM_PROFILE_FILE="$profile.profraw" "$build/bin/${target}_fuzz" -runs=0 \
    -artifact_prefix="$build/fuzz/" "tests/fuzz/corpus/$target" >"$profile.log" 2>&1 || { tail -n 20 "$profile.log"; exit 1; }
  "$llvm_profdata" merge -sparse "$profile.profraw" -o "$profile.profdata"
  "$llvm_cov" export -format=lcov -instr-profile="$profile.profdata" "$build/bin/${target}_fuzz" \
    >"$profile.lcov"
  for file in $files; do
    row=$(awk -F: -v end="/$file" '
      $1 == "SF" { ours = substr($2, length($2) - length(end) + 1) == end }
      ours && $1 == "LF" { lines = $2 }
      ours && $1 == "LH" { print lines, $2; exit }' "$profile.lcov")
    read -r lines hit <<<"$row"
    share=$((hit * 1000 / lines))
    printf 'target=%s file=%s lines=%d covered=%d.%d%%\n' "$target" "$file" "$lines" \
      $((share / 10)) $((share % 10))
    [ $((share / 10)) -ge "$least" ] || least=$((share / 10))
    count=$((count + 1))
  done
done < <(parsers)
printf 'files=%d least=%d%%\n' "$count" "$least"
[ "$least" -ge 80 ]
