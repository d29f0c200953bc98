#!/usr/bin/env bash
# expert_parallel_gpus.sh [BUILD]: servers whose groups have two ranks on two Hopper GPUs against one
# on one GPU, bit for bit: answers, prefix hits, a rank killed, a rank that stands still. Exit 77
# where it cannot run, with the reason.
set -euo pipefail
build=${1:-build/dev}
skip() { echo "skipped: $1"; exit 77; }
count=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -c '^9\.' || true)
[ "$count" -ge 2 ] || skip "two Hopper GPUs are needed, $count here"
"$build/bin/skein" doctor 2>/dev/null | grep -Eq '^ *nccl +ok' ||
  skip "libnccl.so.2 is not found; install libnccl2 2.18 or later"
"$build/bin/expert_parallel_test" --gtest_filter='*.TwoRanksAnswerAsOne:*.HitsAnswerAsTheColdModel:*.StreamsOutlive*'
