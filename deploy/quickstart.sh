#!/usr/bin/env bash
# From a fresh checkout to a streamed answer: installs packages, builds, serves the demo model, asks
# one question, then serves until Ctrl-C. On Debian 12, as root or with sudo.
#   --check    ask, verify the answers, stop; the exit status is the result
#   --port N   serve there (8000; --check takes any free port)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. deploy/packages.sh

check=no
port=8000
while [ $# -gt 0 ]; do
  case "$1" in
    --check) check=yes; port=0 ;;
    --port) port="${2:?--port needs a number}"; shift ;;
    *) echo "error: unknown option $1; known: --check, --port N" >&2; exit 64 ;;
  esac
  shift
done

install_missing "${build_packages[@]}"
build_preset release

log=$(mktemp)
server=
stop() {
  if [ -n "$server" ] && kill -0 "$server" 2>/dev/null; then
    kill -TERM "$server"
    wait "$server" || true
  fi
  rm -f "$log"
}
trap stop EXIT
trap 'exit 130' INT TERM

say "Starting skein serve"
started=$(date +%s%N)
build/release/bin/skein serve --port "$port" >"$log" 2>&1 &
server=$!
# `health` answers 200 once a one-token generation would succeed.
url=
until [ -n "$url" ] && curl -sf -o /dev/null "$url/health"; do
  kill -0 "$server" 2>/dev/null || { cat "$log"; echo "error: skein serve ended" >&2; exit 1; }
  [ $(($(date +%s%N) - started)) -lt 60000000000 ] ||
    { cat "$log"; echo "error: not ready after 60 s" >&2; exit 1; }
  url=$(sed -n 's/^coordinator: ready \(http[^ ]*\).*/\1/p' "$log" | tail -n 1)
  sleep 0.1
done
ready_ms=$((($(date +%s%N) - started) / 1000000))
sed -n '1,/^$/{/^ts=/d;p}' "$log"
say "Ready after ${ready_ms} ms"

# ask QUESTION: streams the answer to the terminal and leaves it in $answer.
ask() {
  local body="{\"messages\":[{\"role\":\"user\",\"content\":\"$1\"}],\"temperature\":0,\"thinking\":{\"type\":\"disabled\"},\"max_tokens\":64,\"stream\":true,\"stream_options\":{\"include_usage\":true}}"
  local events begin end tokens
  events=$(mktemp)
  say "$1"
  begin=$(date +%s%N)
  curl -sSfN "$url/v1/chat/completions" -H 'Content-Type: application/json' -d "$body" |
    tee "$events" |
    awk '{ if (match($0, /"delta":\{"content":"([^"\\]|\\.)*"/)) {
             text = substr($0, RSTART + 20, RLENGTH - 21)
             gsub(/\\n/, "\n", text); gsub(/\\"/, "\"", text); gsub(/\\\\/, "\\", text)
             printf "%s", text; fflush() } }
         END { print "" }'
  end=$(date +%s%N)
  answer=$(awk '{ if (match($0, /"delta":\{"content":"([^"\\]|\\.)*"/))
                    printf "%s", substr($0, RSTART + 20, RLENGTH - 21) }' "$events")
  tokens=$(sed -n 's/.*"completion_tokens":\([0-9]*\).*/\1/p' "$events" | tail -n 1)
  grep -q '^data: \[DONE\]' "$events" || { echo "error: the stream did not end" >&2; return 1; }
  rm -f "$events"
  awk -v t="${tokens:-0}" -v ns=$((end - begin)) \
    'BEGIN { printf "%d tokens in %.0f ms, %.0f tokens/s\n", t, ns / 1e6, t * 1e9 / ns }'
  printf "curl -N %s/v1/chat/completions -H 'Content-Type: application/json' -d '%s'\n" "$url" \
    "$body"
}

# expect TEXT: the last answer must contain it.
expect() {
  case "$answer" in
    *"$1"*) ;;
    *) echo "error: the answer \"$answer\" does not contain \"$1\"" >&2; exit 1 ;;
  esac
}

ask "What is the capital of Vietnam?"
if [ "$check" = yes ]; then
  expect Hanoi
  ask "天空是什么颜色？"
  expect 蓝色
  [ "$ready_ms" -le 10000 ] || { echo "error: ready after $ready_ms ms, bound 10000" >&2; exit 1; }
  say "Check passed"
  exit 0
fi
say "Serving at $url, Ctrl-C stops"
wait "$server"
