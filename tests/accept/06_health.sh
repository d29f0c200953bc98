#!/bin/sh
# Check 6: ready follows what would be served now; live and a long prefill do not move it.
# Usage: 06_health.sh [BUILD_DIRECTORY [ROUNDS]], from the root of the tree. Exit 0: it holds. The last
# lines are the figures.
set -eu
build=${1:-build/dev}
rounds=${2:-1}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! "$build/bin/operator_test" --gtest_filter='HealthTest.*' --gtest_repeat="$rounds" \
  --gtest_fail_fast >"$log" 2>&1; then
  cat "$log"
  exit 1
fi
grep -E '^(probes|ready_after_s|hang_seen_s|wedge_seen_s)' "$log"
