#!/usr/bin/env bash
# The openai SDK against a real `skein serve`. 77 when Node 20 or the packages are missing, with what
# is missing as the last line.
#   tests/client/run.sh [BUILD]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=${1:-build/dev}

# node_20: the machine's, or the one that deploy/test.sh put beside the build.
node_20() {
  local node
  for node in "$(command -v node || true)" build/node_20/node_modules/node/bin/node; do
    [ -x "$node" ] || continue
    [ "$("$node" -p 'process.versions.node.split(".")[0] >= 20' 2>/dev/null)" = true ] || continue
    echo "$node"
    return 0
  done
  return 1
}

node=$(node_20) || { echo "client suite: skipped, no Node 20; run deploy/test.sh"; exit 77; }
[ -d tests/client/node_modules/openai ] ||
  { echo "client suite: skipped, npm packages are missing; run npm ci in tests/client"; exit 77; }
SKEIN_PROGRAMS="$build/bin" exec "$node" --test --test-reporter=spec tests/client/*.test.mjs
