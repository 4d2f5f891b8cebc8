#!/bin/bash
# Shows that ./run, ./test and CMake's build work on a fresh Debian: in a chroot, from a clone of this checkout's
# last commit. By hand, not in CI: it downloads about 1 GB and compiles everything anew. Needs root and mmdebstrap.
#   tools/check/debian.sh SUITE [run|test|cmake|shell]...      trixie is Debian 13; default: run test cmake
# The chroot stays in out/SUITE, and is used again; remove it with rm -r (nothing is mounted there afterwards).
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../setup.sh"

suite=${1:-}
[[ $suite =~ ^[a-z]+$ ]] || die "usage: tools/check/debian.sh SUITE [run|test|cmake|shell]..., as in tools/check/debian.sh trixie run"
shift
steps=("$@")
(($#)) || steps=(run test cmake)
[[ $(id -u) == 0 ]] || die "a chroot needs root"
ensure_packages mmdebstrap

root=$STILLMAP_ROOT/out/$suite
if [[ ! -e $root/complete ]]; then
  say "making a chroot of $suite in $root"
  mkdir -p "$STILLMAP_ROOT/out"
  rm -rf "$root"
  mmdebstrap --quiet --variant=minbase --include=ca-certificates,git "$suite" "$root"
  touch "$root/complete"
fi
rm -rf "$root/stillmap"
git clone --quiet --no-hardlinks "$STILLMAP_ROOT" "$root/stillmap"
cp /etc/resolv.conf "$root/etc/resolv.conf"
[[ ! -d /etc/ssl/certs ]] || cp -rLn /etc/ssl/certs/. "$root/etc/ssl/certs/" 2>/dev/null || true # of proxies in between

# In mount and PID namespaces of its own, so that nothing stays mounted and no process stays behind.
inside() {
  unshare --mount --pid --fork --kill-child bash -c '
    mount -t proc proc "$1/proc" && mount --rbind /sys "$1/sys" && mount --rbind /dev "$1/dev" &&
      exec chroot "$1" env -i HOME=/root TERM="${TERM:-dumb}" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        LANG=C.UTF-8 bash -c "cd /stillmap && $2"' inside "$root" "$1"
}
step_run() { inside ./run </dev/null; }
step_test() { inside './test --strict'; }
step_shell() { inside 'exec bash'; }
step_cmake() {
  inside 'source tools/setup.sh && ensure_machine && export DEBIAN_FRONTEND=noninteractive && apt-get install -y -q --no-install-recommends cmake ninja-build pkgconf libgtest-dev >/dev/null &&
    cmake -S . -B build -G Ninja -DSTILLMAP_WERROR=ON -DCMAKE_CXX_FLAGS_RELEASE=-O0 -DCMAKE_INSTALL_PREFIX=/opt/stillmap &&
    cmake --build build && cmake --install build >/dev/null && /opt/stillmap/bin/stillmap --version'
}

failed=()
for step in "${steps[@]}"; do
  declare -F "step_$step" >/dev/null || die "no step $step; there are: run, test, cmake, shell"
  "step_$step" || failed+=("$step")
done
((${#failed[@]} == 0)) || die "$suite: failed: ${failed[*]}"
say "ok: $suite: ${steps[*]}"
