#!/usr/bin/env bash
# Acceptance check 1: the documented command starts in a clean environment (no variables, a new home,
# no GPU, no RDMA, a small /dev/shm, a read-only tree), ready in 10 s, answers a chat, shows the
# doctor's table. Then one optional thing after the other is hidden: the start must go on, or end with
# 78 and its name when the feature is required. Needs root or user namespaces; mounts stay in
# namespaces of its own.
#   01_starts.sh [BUILD]   BUILD: build directory (build/dev)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tree=$PWD
bin=$(realpath "${1:-build/dev}")/bin
user=()
[ "$(id -u)" -eq 0 ] || user=(--user --map-root-user)
unshare "${user[@]}" --mount true 2>/dev/null ||
  { echo "skipped: this host gives no mount namespace"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/home"
export LC_ALL=C

# hide NAME: shell commands that take the thing away, run inside a mount namespace.
hide() {
  case $1 in
    pid_namespace) echo 'echo 0 >/proc/sys/user/max_pid_namespaces' ;;
    cgroup_leaf) echo 'umount -l /sys/fs/cgroup' ;;
    rdma) echo 'if [ -e /dev/infiniband ]; then mount -t tmpfs none /dev/infiniband; fi' ;;
    nvml) echo 'for f in $(ldconfig -p | sed -n "s/.*libnvidia-ml.*=> //p"); do mount --bind /dev/null $f; done' ;;
    nccl) echo 'for f in $(ldconfig -p | sed -n "s/.*libnccl.*=> //p"); do mount --bind /dev/null $f; done' ;;
    shared_memory) echo 'mount -t tmpfs -o size=1M none /dev/shm' ;;
    memlock) echo 'ulimit -l 64' ;;
    numa) echo 'mount -t tmpfs none /sys/devices/system/node' ;;
    huge_pages) echo 'mount -t tmpfs none /sys/kernel/mm/transparent_hugepage' ;;
    run_directory) echo 'mount -t tmpfs -o ro none /run' ;;
    descriptors) echo 'ulimit -n 512' ;;
    clock) echo 'mount -t tmpfs none /sys/devices/system/clocksource' ;;
    nothing) echo 'mount -t tmpfs -o size=1M none /dev/shm' ;;
  esac
}

# start NAME FLAGS...: skein serve with NAME hidden, in the background; its pid is in $server.
start() {
  local name=$1 inner user=()
  shift
  # The limit of PID namespaces is one of a user namespace.
  if [ "$name" = pid_namespace ] || [ "$(id -u)" -ne 0 ]; then user=(--user --map-root-user); fi
  inner="set -e; mount --bind -o ro '$tree' '$tree'; $(hide "$name")
    exec env -i HOME='$work/home' PATH=/usr/bin:/bin '$bin/skein' serve --port 0 $*"
  unshare "${user[@]}" --mount --propagation private bash -c "$inner" >"$work/log" 2>&1 &
  server=$!
}

# stop: ends it and waits.
stop() { kill -TERM "$server" 2>/dev/null || true; wait "$server" || true; }

# ready: waits at most 10 s; the milliseconds are in $ready_ms.
ready() {
  local began url=
  began=$(date +%s%N)
  while ready_ms=$((($(date +%s%N) - began) / 1000000)); [ "$ready_ms" -le 10000 ]; do
    kill -0 "$server" 2>/dev/null || return 1
    url=$(sed -n 's/^coordinator: ready \(http[^ ]*\).*/\1/p' "$work/log" | tail -n 1)
    if [ -n "$url" ] && curl -sf -o /dev/null "$url/health"; then
      address=$url
      return 0
    fi
    sleep 0.05
  done
  return 1
}

good=0
fail() { echo "FAILED: $*"; tail -n 20 "$work/log"; }

start nothing
if ready; then
  first_ms=$ready_ms
  answer=$(curl -s "$address/v1/chat/completions" -H 'Content-Type: application/json' -d \
    '{"messages":[{"role":"user","content":"What is the capital of Vietnam?"}],"temperature":0,"thinking":{"type":"disabled"},"max_tokens":32}')
  if grep -q Hanoi <<<"$answer"; then good=1; else fail "the chat answered $answer"; fi
else
  first_ms=$ready_ms
  fail "not ready in a clean environment"
fi
stop
env -i HOME="$work/home" PATH=/usr/bin:/bin "$bin/skein" doctor --port 0

for name in pid_namespace cgroup_leaf rdma nvml nccl shared_memory memlock numa huge_pages \
  run_directory descriptors clock; do
  start "$name"
  if ! ready; then
    fail "$name hidden: not ready"
    stop
    continue
  fi
  stop
  flag=--feature-${name//_/-}
  start "$name" "$flag" required
  code=0
  for _ in $(seq 200); do kill -0 "$server" 2>/dev/null && sleep 0.05; done
  kill -TERM "$server" 2>/dev/null || true  # it should have refused
  wait "$server" || code=$?
  if [ "$code" -eq 78 ] && grep -q "$name is required (features.$name)" "$work/log"; then
    good=$((good + 1))
  else
    fail "$name hidden and required: exit $code"
    stop
  fi
done
echo "starts=$good/13 first_ready_ms=$first_ms"
[ "$good" -eq 13 ]
