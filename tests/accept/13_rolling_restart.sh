#!/bin/sh
# Check 13: rolling restarts N-1 -> N -> N-1 under load, with one group and two.
# Usage: 13_rolling_restart.sh [BUILD_DIRECTORY [ROUNDS]], from the root of the tree. Exit 0: it holds. The last
# lines are the figures.
set -eu
build=${1:-build/dev}
rounds=${2:-1}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! "$build/bin/operator_test" --gtest_filter='*RolloutProcessTest*' --gtest_repeat="$rounds" \
  --gtest_fail_fast >"$log" 2>&1; then
  cat "$log"
  exit 1
fi
grep -E '^failed_requests=' "$log"
