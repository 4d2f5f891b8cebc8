#!/bin/bash
# Makes the wheel of stillmap-hostcuda: hostcuda's libraries, the command `hostcuda` and the pytest plug-in.
#   hostcuda/python/wheel.sh [--libraries FOLDER] [--check] [--stage-only]
#     --libraries FOLDER   take them from an installed hostcuda, in place of building them with Bazel
#     --check              install the wheel in a new virtual environment with pytest, and run its tests
#     --stage-only         write the package, without building the wheel; needs no network
# Writes out/wheel/stillmap_hostcuda/ and out/wheel/*.whl. The build backend comes from PyPI. The wheel has a CUDA
# runtime for each major version whose headers were found (STILLMAP_CUDA12_INCLUDE, STILLMAP_CUDA13_INCLUDE).
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../tools/setup.sh"

libraries='' check='' stage_only='' math=()
while (($#)); do
  case $1 in
    --libraries) libraries=$(cd "${2:?--libraries needs a folder}" && pwd) && shift ;;
    --check) check=1 ;;
    --stage-only) stage_only=1 ;;
    *)
      sed -n '2,8s/^# \?//p' "${BASH_SOURCE[0]}"
      [[ $1 == --help || $1 == -h ]] && exit 0
      die "hostcuda/python/wheel.sh does not know $1"
      ;;
  esac
  shift
done

cd "$STILLMAP_ROOT"
stage=out/wheel/source
package=$stage/stillmap_hostcuda
rm -rf out/wheel
mkdir -p "$package/lib" "$package/include"
cp hostcuda/python/{pyproject.toml,setup.py,README.md} LICENSE "$stage/"
cp -r hostcuda/python/stillmap_hostcuda/{*.py,inside} "$package/"
cp -r hostcuda/include/hostcuda "$package/include/"

if [[ $libraries ]]; then
  files=("$libraries/libcuda.so.1" "$libraries/libnvidia-ml.so.1")
  for file in "$libraries"/libcudart.so.1[23]; do [[ ! -e $file ]] || files+=("$file"); done
  math=("$libraries"/mathlibs/lib*.so.*)
else
  ensure_machine
  bazel_quietly build //hostcuda:libcuda.so.1 //hostcuda/nvml:libnvidia-ml.so.1 //hostcuda/cudart:all //hostcuda/mathlibs
  files=(bazel-bin/hostcuda/libcuda.so.1 bazel-bin/hostcuda/nvml/libnvidia-ml.so.1)
  # Files of earlier builds may lie there: only those that this build has.
  for target in $(tools/bazel query 'filter("libcudart.so.1[23]$", //hostcuda/cudart:all)' 2>/dev/null); do
    files+=("bazel-bin/hostcuda/cudart/${target#*:}")
  done
  for target in $(tools/bazel query 'kind(cc_binary, //hostcuda/mathlibs:all)' 2>/dev/null); do
    math+=("bazel-bin/hostcuda/mathlibs/${target#*:}")
  done
fi
for file in "${files[@]}"; do
  [[ -e $file ]] || die "there is no $file"
  install -m 755 "$file" "$package/lib/"
  strip --strip-unneeded "$package/lib/$(basename "$file")"
done
mkdir "$package/lib/mathlibs"
install -m 755 "${math[@]}" "$package/lib/mathlibs/"
strip --strip-unneeded "$package"/lib/mathlibs/*
say "libraries: $(cd "$package/lib" && echo *)"
[[ ! $stage_only ]] || exit 0

python3 -m venv out/wheel/builder
out/wheel/builder/bin/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir out/wheel "$stage"
wheel=$(echo out/wheel/*.whl)
say "wrote $wheel"
[[ $check ]] || exit 0

python3 -m venv out/wheel/fresh
out/wheel/fresh/bin/pip install --quiet --disable-pip-version-check "$wheel" pytest
(
  cd out/wheel # so that nothing of the repository is imported
  fresh/bin/python -m pytest -q -p no:cacheprovider --hostcuda=on "$STILLMAP_ROOT/hostcuda/python/tests/driver_by_ctypes.py"
  fresh/bin/hostcuda run --profile multi:2 --config memory=1G -- \
    fresh/bin/python "$STILLMAP_ROOT/hostcuda/python/tests/installed_program.py"
)
say "the installed wheel works"
