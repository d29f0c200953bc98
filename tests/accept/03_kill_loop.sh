#!/bin/sh
# Check 3: a worker killed every 2 s under 64 streams, each compared with an undisturbed run; then
# the coordinator killed, whose streams must all be errors for their clients.
# Usage: 03_kill_loop.sh [BUILD_DIRECTORY [SECONDS [STREAM_SECONDS [COORDINATOR_KILLS [mock|tiny]]]]]
# (build/dev 300 20 10 mock), from the root of the tree. tiny: the demo model, whose streams are compared
# with an undisturbed run; its figures of speed are printed and not judged. Exit 0: it holds. The last
# line has the figures.
set -eu
exec "${1:-build/dev}/bin/kill_loop" --seconds "${2:-300}" --stream-seconds "${3:-20}" \
  --coordinator-kills "${4:-10}" --worker "${5:-mock}"
