#!/bin/sh
# Check 11: connections that drip their requests or their reading, beside 50 honest clients.
# Usage: 11_slow_clients.sh [BUILD_DIRECTORY [DRIPPERS [READERS [SECONDS]]]] (build/dev 10000 1000 10),
# from the root of the tree. Exit 0: it holds; 77: too few descriptors here. The last line has the
# figures; below 10,000 drippers those of speed are not judged.
set -eu
exec "${1:-build/dev}/bin/slow_clients" --drippers "${2:-10000}" --readers "${3:-1000}" \
  --seconds "${4:-10}"
