#!/usr/bin/env bash
# Acceptance check 16: twenty trees that look like hosts get the right verdict, a foreign holder stops
# the start with 78, nothing foreign is signalled.
#   16_who_holds.sh [BUILD]   BUILD: build directory (build/dev)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=${1:-build/dev}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run() { "$build/bin/$1" --gtest_brief=1 --gtest_filter="$2" >"$log" 2>&1 || { cat "$log"; exit 1; }; }
run worker_node_test 'WhoHoldsTest.T*'
trees=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log")
run worker_node_test 'DoctorTest.AForeignHolderStopsAGpuBackendAlone:KillOrphansTest.*'
run worker_commands_test 'WhoholdsCommandTest.*'
echo "trees=$trees/20 foreign_holder_exit=78 foreign_signalled=0"
[ "$trees" = 20 ]
