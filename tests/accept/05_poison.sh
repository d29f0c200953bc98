#!/bin/sh
# Check 5, the part of poison: one request ends after at most 3 worker incarnations, nobody else does.
# Usage: 05_poison.sh [BUILD_DIRECTORY [ROUNDS]], from the root of the tree. Exit 0: it holds. The last
# lines are the figures.
set -eu
build=${1:-build/dev}
rounds=${2:-1}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! "$build/bin/operator_test" --gtest_filter='*PoisonProcessTest*' --gtest_repeat="$rounds" \
  --gtest_fail_fast >"$log" 2>&1; then
  cat "$log"
  exit 1
fi
grep -E '^workers=' "$log"
