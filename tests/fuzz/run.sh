#!/usr/bin/env bash
# Fuzzes each target for SECONDS (60) from its corpus, which stays as it is, and prints what each did.
# A finding is kept under BUILD/fuzz; give it to the target as its only argument to repeat it.
#   cmake --preset fuzz && cmake --build --preset fuzz && tests/fuzz/run.sh
# Usage: run.sh [BUILD [SECONDS [TARGET...]]] (build/fuzz 60, all). Exit 0: no finding.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=${1:-build/fuzz} seconds=${2:-60}
shift $(($# < 2 ? $# : 2))
targets=("$@")
[ ${#targets[@]} -gt 0 ] || for corpus in tests/fuzz/corpus/*/; do targets+=("$(basename "$corpus")"); done

findings=0
mkdir -p "$build/fuzz"
for target in "${targets[@]}"; do
  work="$build/fuzz/$target"
  rm -rf "$work" && mkdir -p "$work/new"
  dictionary=()
  [ ! -f "tests/fuzz/dictionaries/$target.dict" ] ||
    dictionary=("-dict=tests/fuzz/dictionaries/$target.dict")
  status=ok
  ASAN_OPTIONS=quarantine_size_mb=16 LLVM_PROFILE_FILE=/dev/null \
    "$build/bin/${target}_fuzz" "${dictionary[@]}" -max_total_time="$seconds" -max_len=4096 \
    -timeout=20 -rss_limit_mb=1024 -malloc_limit_mb=512 -print_final_stats=1 \
    -artifact_prefix="$work/" "$work/new" "tests/fuzz/corpus/$target" >"$work/log" 2>&1 ||
    { status=FINDING; findings=$((findings + 1)); grep -E 'property|ERROR|SUMMARY' "$work/log" || true; }
  stat() { sed -n "s/^stat::$1: *//p" "$work/log"; }
  printf 'target=%s %s executions=%s per_second=%s slowest_s=%s peak_mb=%s\n' "$target" "$status" \
    "$(stat number_of_executed_units)" "$(stat average_exec_per_sec)" \
    "$(stat slowest_unit_time_sec)" "$(stat peak_rss_mb)"
done
printf 'targets=%d seconds=%s findings=%d\n' "${#targets[@]}" "$seconds" "$findings"
[ "$findings" -eq 0 ]
