#!/bin/bash
# Runs the tests of the Python package inside of unmodified frameworks, on hostcuda.
#   tools/frameworks.sh [torch|vllm|numba|...]...      default: torch
# Each framework gets a virtual environment in .cache/frameworks/, with the package installed by pip; the downloads
# are large (PyTorch's CUDA wheel with its libraries: 3 GB; vLLM: 8 GB).
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/setup.sh"
cd "$STILLMAP_ROOT"

# What pip installs for each: the versions that were tested.
declare -A packages=(
  [torch]='torch==2.15.0 numpy'
  [vllm]='vllm==0.33.0'
  [numba]='numba-cuda[cu13]==0.30.4 numba==0.68.1'
  [cuda_core]='cuda-core==1.2.2 cuda-bindings==13.5.0'
)

frameworks=("$@")
(($#)) || frameworks=(torch)
for name in "${frameworks[@]}"; do
  [[ ${packages[$name]:-} ]] || die "no framework '$name'; there are: ${!packages[*]}"
done

ensure_machine
tools/hostcuda_wheel.sh --stage-only
status=0
for name in "${frameworks[@]}"; do
  venv=.cache/frameworks/$name
  if [[ ! -e $venv/complete ]]; then
    say "installing ${packages[$name]} into $venv"
    rm -rf "$venv"
    python3 -m venv "$venv"
    # shellcheck disable=SC2086  # several words
    "$venv/bin/pip" install --quiet --disable-pip-version-check ${packages[$name]}
    touch "$venv/complete"
  fi
  say "installing the package stillmap into $venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check .
  say "$name"
  tests=("${name}_test.py")
  [[ $name != torch ]] || tests+=(memory_saver_test.py torch_report_test.py)
  for test in "${tests[@]}"; do
    (
      cd "$venv" # so that nothing of the repository is imported
      PYTHONPATH="$STILLMAP_ROOT/out/wheel/source" bin/python -c \
        'import sys; from stillmap_hostcuda import launcher; sys.exit(launcher.main())' run --kernels skip --config memory=4G -- \
        bin/python "$STILLMAP_ROOT/python/tests/frameworks/$test"
    ) || status=1
  done
done
exit "$status"
