#!/usr/bin/env bash
# Acceptance check 2: SIGKILL of supervisors, coordinators and workers, alone and together, at random
# moments; workers have detached and stopped helpers. Then the next start sweeps what was planted, and
# the real programs are killed in every stage of their life.
#   02_no_orphans.sh [BUILD [ROUNDS]]   BUILD: build directory (build/dev); ROUNDS: 100
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=${1:-build/dev}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run() { "$build/bin/$1" "${@:2}" >"$log" 2>&1 || { cat "$log"; exit 1; }; }
run no_orphans_test "--rounds=${2:-100}"
figures=$(grep -E '^(rung|rounds=|planted_survivors=)' "$log")
run killed_stages_test --gtest_filter='KilledStagesTest.*'
printf '%s\n' "$figures"
stages=$(grep '^stages=' "$log")
echo "$stages"
# Each within a second; what was planted within a second of the next start.
for figure in $(grep -oE '[a-z_]+_ms=[0-9]+' <<<"$figures $stages" | sort -u); do
  [ "${figure#*=}" -le 1000 ] || { echo "too slow: $figure"; exit 1; }
done
grep '^rounds=' <<<"$figures"
