#!/bin/sh
# Which of the planted bugs of mutants.txt the unit tests see, one alive at a time. Those that they do
# not see and skein-sim-mutants finds are what the simulation is for.
#   cmake --build --preset dev --target unit_mutants && tests/sim/unit_mutants.sh
# Usage: unit_mutants.sh [BUILD [FIRST [LAST]]] (build/dev, all). The last line has the figures; exit 1
# if a test fails without any.
set -eu
cd "$(dirname "$0")/../.."
build=${1:-build/dev} first=${2:-1} last=${3:-9999}
seen=0 unseen=0
run() {
  for test in "$build"/bin/mutated_*_test; do
    timeout 120 "$test" --gtest_fail_fast --gtest_brief=1 "$1" >"$log" 2>&1 || return 1
  done
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! run 0; then
  cat "$log"
  exit 1
fi
numbers=$(sed -n 's/^mutant \([0-9]*\) .*/\1/p' tests/sim/mutants.txt)
for number in $numbers; do
  [ "$number" -ge "$first" ] && [ "$number" -le "$last" ] || continue
  what=$(sed -n "s/^mutant $number //p" tests/sim/mutants.txt)
  if run "$number"; then
    unseen=$((unseen + 1))
    echo "mutant $number, $what: passes the unit tests"
  else
    seen=$((seen + 1))
    by=$(sed -n 's/^\[  FAILED  \] //p' "$log" | head -1)
    echo "mutant $number, $what: seen by ${by:-a test that ended}"
  fi
done
echo "mutants=$((seen + unseen)) seen_by_unit_tests=$seen pass_unit_tests=$unseen"
