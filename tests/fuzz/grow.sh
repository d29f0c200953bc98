#!/usr/bin/env bash
# Makes the corpus of TARGET anew: fuzzes for SECONDS from the corpus and further inputs in the
# directories SEEDS, then keeps the smallest inputs that reach everything that was reached.
# Usage: grow.sh BUILD TARGET SECONDS [SEEDS...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=$1 target=$2 seconds=$3
shift 3
corpus="tests/fuzz/corpus/$target" work="$build/fuzz/$target.grow"
rm -rf "$work" && mkdir -p "$work/new" "$work/kept" "$corpus"
export ASAN_OPTIONS=quarantine_size_mb=16 LLVM_PROFILE_FILE=/dev/null
dictionary=()
[ ! -f "tests/fuzz/dictionaries/$target.dict" ] ||
  dictionary=("-dict=tests/fuzz/dictionaries/$target.dict")
"$build/bin/${target}_fuzz" "${dictionary[@]}" -max_total_time="$seconds" -max_len=1024 \
  -use_value_profile=1 -reduce_inputs=1 -artifact_prefix="$work/" \
  "$work/new" "$corpus" "$@" >"$work/log" 2>&1 || { tail -n 20 "$work/log"; exit 1; }
# One feature for each edge: how often it was taken does not matter for what is kept.
"$build/bin/${target}_fuzz" -merge=1 -use_counters=0 "$work/kept" "$work/new" "$corpus" "$@" \
  >"$work/merge.log" 2>&1
# Inputs that were once a finding have a name of their own and stay.
find "$corpus" -type f ! -name 'found_*' -delete
for input in "$work/kept"/*; do cp "$input" "$corpus/$(basename "$input" | cut -c1-12)"; done
printf '%s: inputs=%d bytes=%d\n' "$target" "$(find "$corpus" -type f | wc -l)" \
  "$(cat "$corpus"/* | wc -c)"
