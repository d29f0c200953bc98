#!/usr/bin/env bash
# Acceptance check 17, the prefix cache: a prompt that another tenant computed is found neither in
# cached tokens nor in time; equal hashes are no identity.
#   17_tenant_isolation.sh [BUILD [PAIRS [SALTS]]]   (build/dev 500 200)
# The last line has the figures; with fewer than 500 pairs those of time only have to be likely.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=${1:-build/dev}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run() { "$build/bin/$1" --gtest_brief=1 --gtest_filter="$2" >"$log" 2>&1 || { cat "$log"; exit 1; }; }
run scheduler_test '*Collid*'
run prefix_hit_test '*Collides:*RootsShareNothing'
exec "$build/bin/tenants" --pairs "${2:-500}" --salts "${3:-200}"
