#!/bin/sh
# Check 10: every framing rule by raw probes, and a seeded differential run of the listener's reader
# against a second reading of the rules, beside honest streams.
# Usage: 10_http_framing.sh [BUILD_DIRECTORY [SECONDS [SEED]]] (build/dev 20 1), from the root of the
# tree. Exit 0: it holds. The last line has the figures.
set -eu
exec "${1:-build/dev}/bin/http_framing" --seconds "${2:-20}" --seed "${3:-1}"
