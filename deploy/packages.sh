# The packages of the build, of the tests and of a run, and their installation on Debian 12. Sourced by
# quickstart.sh and test.sh; defines functions only.

build_packages=(
  ca-certificates ccache cmake capnproto cppzmq-dev curl g++ libabsl-dev libboost-json1.81-dev
  libboost1.81-dev libcapnp-dev libpcre2-dev libspdlog-dev libssl-dev libucx-dev
  libyaml-cpp-dev libzmq3-dev mold ninja-build pkg-config procps prometheus-cpp-dev zlib1g-dev)
# chromium: the page at /; systemd: its verifier of units; prometheus: promtool.
test_packages=(chromium libgmock-dev libgtest-dev prometheus systemd)
# What the installed programs need and the smallest Debian 12 image lacks.
runtime_packages=(
  ca-certificates libabsl20220623 libboost-json1.81.0 libcapnp-0.9.2 libpcre2-8-0
  libprometheus-cpp-core1.0 libspdlog1.10 libssl3 libucx0 libyaml-cpp0.7 libzmq5)

# say TEXT: one line of progress.
say() { printf '\n==> %s\n' "$*"; }

# as_root COMMAND...: as root, or with sudo.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    echo "error: '$*' needs root; run as root or install sudo" >&2
    return 1
  fi
}

# install_missing PACKAGE...: installs what is not there; asks the archive only if it must.
install_missing() {
  local missing=() package
  for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
      missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  say "Installing ${#missing[@]} packages: ${missing[*]}"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

# build_preset PRESET: configures and builds with every core.
build_preset() {
  say "Configuring ($1)"
  cmake --preset "$1" --log-level=STATUS | grep -E '^-- (CUDA|Build files|The C)' || true
  [ -f "build/$1/build.ninja" ] || { cmake --preset "$1"; return 1; }
  say "Building ($1)"
  cmake --build --preset "$1" -- -j"$(nproc)"
}
