# What ./run, ./test and .ci/run have in common: getting the machine ready, and calling Bazel.
# Sourced, not run. Needs bash; sets STILLMAP_ROOT.

set -euo pipefail
STILLMAP_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# What Debian 12 and 13 call the things we need: the build, then the third-party code.
STILLMAP_PACKAGES=(
  g++ python3 python3-dev
  bazel-bootstrap bazel-platforms bazel-rules-java bazel-rules-proto bazel-skylib
  googletest libbenchmark-dev libexpected-dev libfmt-dev libxxhash-dev libzstd-dev
  flatbuffers-compiler libflatbuffers-dev liblz4-dev libmicrohttpd-dev libncurses-dev libssl-dev liburing-dev
  libopenmpi-dev openmpi-bin libucx-dev
)

say() { printf '%s\n' "stillmap: $*" >&2; }
die() {
  say "$*"
  exit 1
}

# Runs a command as root, or says what to type.
as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "needs root for: $* (run that as root, then try again)"
  fi
}

# The system's name where it is not one that ./run and ./test are tried on (tools/check/debian.sh), else nothing.
untried_system() {
  local ID=unknown VERSION_ID='' PRETTY_NAME=''
  # shellcheck disable=SC1091
  [[ ! -r /etc/os-release ]] || . /etc/os-release
  [[ $ID$VERSION_ID == debian1[23] ]] || printf '%s' "${PRETTY_NAME:-$ID $VERSION_ID}"
}

# Installs those of the named Debian packages that are missing, and says which.
ensure_packages() {
  local missing=() package system
  system=$(untried_system)
  if ! command -v dpkg-query >/dev/null; then
    if find_bazel >/dev/null && command -v g++ >/dev/null && command -v python3 >/dev/null; then
      return 0 # Not Debian: whoever set this machine up knows better; Bazel gets the rest.
    fi
    die "$system has no packages of Debian's: install Bazel 4 or later, g++ 12 or later, OpenSSL's headers and Python 3" \
      "(on Debian: $*)"
  fi
  local installed
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null || true)
  for package in "$@"; do
    grep -qx "installed $package" <<<"$installed" || missing+=("$package")
  done
  ((${#missing[@]})) || return 0

  [[ ! $system ]] || say "tried on Debian 12 and 13, not on $system: its packages may have other names or be too old (g++ 12 is needed)"
  say "installing Debian packages: ${missing[*]}"
  local log="$STILLMAP_ROOT/.cache/apt.log" apt=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
  mkdir -p "$(dirname "$log")"
  if ! { as_root "${apt[@]}" update && as_root "${apt[@]}" install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -5 "$log" >&2
    die "could not install ${missing[*]} with apt-get; the whole output is in $log"
  fi
}

# Where cuda.h is, in the order in which the builds look; nothing when nowhere.
find_cuda_headers() {
  local explicit=${STILLMAP_CUDA_INCLUDE:-} folders=() folder
  if [[ $explicit && $explicit != pypi ]]; then
    folders=("$explicit")
  elif [[ $explicit != pypi ]]; then
    [[ ${CUDA_HOME:-} ]] && folders+=("$CUDA_HOME/include")
    folders+=(/usr/local/cuda/include /usr/include)
  fi
  [[ $explicit && $explicit != pypi ]] || folders+=("$STILLMAP_ROOT/.cache/cuda/include")
  for folder in "${folders[@]}"; do
    [[ -e $folder/cuda.h ]] && echo "$folder" && return 0
  done
  return 1
}

# cuda.h from the CUDA Toolkit; where there is none, from the toolkit's header package on PyPI,
# in a Python environment of this folder's own.
ensure_cuda_headers() {
  find_cuda_headers >/dev/null && return 0
  if [[ ${STILLMAP_CUDA_INCLUDE:-} && $STILLMAP_CUDA_INCLUDE != pypi ]]; then
    die "there is no cuda.h in STILLMAP_CUDA_INCLUDE=$STILLMAP_CUDA_INCLUDE"
  fi
  local wheel=nvidia-cuda-runtime-cu12==12.9.79 log="$STILLMAP_ROOT/.cache/pip.log" python=python3
  [[ -x /usr/bin/python3 ]] && python=/usr/bin/python3
  if command -v dpkg-query >/dev/null; then ensure_packages python3-venv ca-certificates; fi
  say "no CUDA Toolkit found: fetching its headers ($wheel) from PyPI into .venv"
  mkdir -p "$STILLMAP_ROOT/.cache/cuda"
  if ! { "$python" -m venv "$STILLMAP_ROOT/.venv" &&
    "$STILLMAP_ROOT/.venv/bin/pip" install --no-deps --disable-pip-version-check "$wheel"; } >"$log" 2>&1; then
    tail -5 "$log" >&2
    die "no CUDA headers: install the CUDA Toolkit and set CUDA_HOME, or give this machine access to PyPI"
  fi
  local include
  include=$(echo "$STILLMAP_ROOT"/.venv/lib/python3*/site-packages/nvidia/cuda_runtime/include)
  [[ -e $include/cuda.h ]] || die "no CUDA headers: $wheel has no cuda.h; install the CUDA Toolkit and set CUDA_HOME"
  ln -sfn "$include" "$STILLMAP_ROOT/.cache/cuda/include"
}

# Where <cuda/memory_resource> is, in the order in which the builds look; nothing when nowhere.
find_cccl_headers() {
  local include folder
  include=$(find_cuda_headers) || return 1
  [[ -e $include/cuda_runtime_api.h ]] || return 1 # which CCCL includes
  for folder in ${STILLMAP_CCCL_INCLUDE:-"$include/cccl" "$include" "$STILLMAP_ROOT/.cache/cccl"}; do
    [[ -e $folder/cuda/memory_resource ]] && echo "$folder" && return 0
  done
  return 1
}

# CCCL, for the tests of allocators/cccl: the toolkit's, or the one of PyPI that belongs to the headers
# that ensure_cuda_headers fetches. A machine that cannot fetch it skips these tests.
ensure_cccl_headers() {
  find_cccl_headers >/dev/null && return 0
  local wheel=nvidia-cuda-cccl-cu12==12.9.27 log="$STILLMAP_ROOT/.cache/pip.log" python=python3
  [[ -x /usr/bin/python3 ]] && python=/usr/bin/python3
  say "no CCCL found: fetching its headers ($wheel) from PyPI into .venv"
  mkdir -p "$STILLMAP_ROOT/.cache"
  if ! { { [[ -x $STILLMAP_ROOT/.venv/bin/pip ]] || "$python" -m venv "$STILLMAP_ROOT/.venv"; } &&
    "$STILLMAP_ROOT/.venv/bin/pip" install --no-deps --disable-pip-version-check "$wheel"; } >"$log" 2>&1; then
    tail -3 "$log" >&2
    say "no CCCL: its memory resources are not tested"
    return 0
  fi
  ln -sfn "$(echo "$STILLMAP_ROOT"/.venv/lib/python3*/site-packages/nvidia/cuda_cccl/include)" "$STILLMAP_ROOT/.cache/cccl"
}

# nanobind, of which the Python module is made, from PyPI: the same version as in pyproject.toml. A
# machine that cannot fetch it builds and tests all else.
ensure_nanobind() {
  local wheel=nanobind==3.1.0 hash=sha256:96984dbe8154ffb86e653b1b60aaeed6985c710c5e75ad0279eb87943c66292d
  local log="$STILLMAP_ROOT/.cache/pip.log" python=python3 found
  mkdir -p "$STILLMAP_ROOT/.cache"
  found=$(echo "$STILLMAP_ROOT"/.venv/lib/python3*/site-packages/nanobind)
  if [[ ! -e $found/src/nb_combined.cpp || ! -e $(echo "$STILLMAP_ROOT"/.venv/lib/python3*/site-packages/nanobind-3.1.0.dist-info) ]]; then
    [[ -x /usr/bin/python3 ]] && python=/usr/bin/python3
    if command -v dpkg-query >/dev/null; then ensure_packages python3-venv ca-certificates; fi
    say "fetching $wheel from PyPI into .venv, for the Python module"
    if ! { { [[ -x $STILLMAP_ROOT/.venv/bin/pip ]] || "$python" -m venv "$STILLMAP_ROOT/.venv"; } &&
      "$STILLMAP_ROOT/.venv/bin/pip" install --no-deps --disable-pip-version-check --require-hashes \
        -r <(echo "$wheel --hash=$hash"); } >"$log" 2>&1; then
      tail -3 "$log" >&2
      say "no nanobind: the Python module is neither built nor tested"
      return 0
    fi
    found=$(echo "$STILLMAP_ROOT"/.venv/lib/python3*/site-packages/nanobind)
  fi
  ln -sfn "$found" "$STILLMAP_ROOT/.cache/nanobind"
}

find_bazel() { type -P bazel || type -P bazelisk; }

# Everything that building and testing needs. A machine with a Bazel of its own keeps it.
ensure_machine() {
  local packages=("${STILLMAP_PACKAGES[@]}") bazel
  if bazel=$(find_bazel) && [[ $bazel != /usr/bin/bazel || ! -x /usr/bin/bazel-4 ]]; then
    packages=(g++ libssl-dev python3)
  fi
  ensure_packages "${packages[@]}"
  ensure_cuda_headers
  ensure_cccl_headers
  ensure_nanobind
}

# What .ci/run needs beside: the other build, and the checkers.
ensure_ci_packages() {
  command -v dpkg-query >/dev/null || return 0
  # With CRIU's header for plugins.
  local criu=libcriu-dev
  [[ $(sed -n 's/^VERSION_ID=//p' /etc/os-release) != '"12"' ]] || criu=criu
  ensure_packages abigail-tools clang clang-format-14 cmake "$criu" dpkg-dev libgtest-dev libslurm-dev lintian make mmdebstrap munge \
    ninja-build pkgconf pyflakes3 python3-pytest slurm-wlm spin systemd universal-ctags
}

# Bazel in this project, with little to say: progress, warnings and errors. STILLMAP_BAZEL_FLAGS adds
# flags to every call: .ci/run builds everything with the same ones, so that nothing is built twice.
bazel_quietly() {
  local command=$1
  shift
  local calm=(--noshow_loading_progress --show_result=0 --ui_event_filters=-info)
  [[ -t 2 ]] || calm+=(--curses=no --color=no --show_progress_rate_limit=10)
  (cd "$STILLMAP_ROOT" && tools/bazel "$command" "${calm[@]}" ${STILLMAP_BAZEL_FLAGS:-} "$@")
}
