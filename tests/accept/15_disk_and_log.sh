#!/usr/bin/env bash
# Acceptance check 15: a worker whose helper prints a million lines a second, log files of at most
# 8 MiB in all; with the figure of the streams beside it. Before that the same on a disk that is full:
# lines are lost and counted, the node goes on (needs root or user namespaces), and a coordinator that
# refuses every connection is called rarely.
#   15_disk_and_log.sh [BUILD [SECONDS [REFUSAL_SECONDS]]]
# BUILD: build directory (build/dev); SECONDS: of the flood (30); REFUSAL_SECONDS: for each way to
# refuse (30).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=${1:-build/dev}
seconds=${2:-30}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/small"
run() { "$@" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }; }
user=()
[ "$(id -u)" -eq 0 ] || user=(--user --map-root-user)
disk=skipped
if unshare "${user[@]}" --mount true 2>/dev/null; then
  run unshare "${user[@]}" --mount --propagation private bash -c "
    mount -t tmpfs -o size=4M none '$work/small' &&
    head -c 4100000 /dev/zero >'$work/small/filler' &&
    exec '$build/bin/killed_stages_test' --gtest_filter='LogFloodTest.*' \
      --flood-seconds=$seconds '--flood-logs=$work/small/logs'"
  grep -q ' lost=[1-9]' "$work/log" || { cat "$work/log"; exit 1; }
  disk=held
  grep '^flood_s=' "$work/log" | sed 's/^/full disk: /'
fi
run "$build/bin/refusing_peer" --seconds "${3:-30}"
sed 's/^/refusing peer: /' "$work/log"
run "$build/bin/killed_stages_test" --gtest_filter='LogFloodTest.*' "--flood-seconds=$seconds"
echo "full_disk=$disk $(grep '^flood_s=' "$work/log")"
