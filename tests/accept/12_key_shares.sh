#!/bin/sh
# Check 12, shares of keys: two keys of weight 1 and 3 under contention get a quarter and three
# quarters of the tokens, within 5 %.
# Usage: 12_key_shares.sh [BUILD_DIRECTORY [SECONDS]] (build/dev 10), from the root of the tree. Exit 0:
# it holds. The last line has the figures.
set -eu
exec "${1:-build/dev}/bin/key_shares" --seconds "${2:-10}"
