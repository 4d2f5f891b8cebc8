#!/bin/bash
# Runs the tests and examples of the Python package inside of unmodified frameworks, on hostcuda.
#   tools/frameworks.sh [--wheel FILE] [torch|vllm|sglang|numba|...|all]...      default: torch
#     --wheel FILE   the package's wheel, in place of building it
# Each framework gets a virtual environment in .cache/frameworks/; the downloads are large (PyTorch's CUDA wheel
# with its libraries: 3 GB, alone 0.6 GB; vLLM: 8 GB; SGLang without most of its dependencies: 4 GB; the six others: 2.4 GB of disk together).
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/setup.sh"
cd "$STILLMAP_ROOT"

# What pip installs for each: the versions that were tested.
declare -A packages=(
  [torch]='torch==2.15.0 numpy'
  [torch_2_8]='torch==2.8.0 numpy'
  [torch_alone]='filelock typing-extensions setuptools sympy networkx jinja2 fsspec numpy nvidia-cuda-nvrtc==13.2.86'
  [vllm]='vllm==0.33.0'
  [sglang]='filelock typing-extensions setuptools>=77.0.3 sympy networkx jinja2 fsspec numpy triton==3.8.0
    nvidia-cuda-nvrtc transformers==5.19.0 tokenizers==0.23.2 apache-tvm-ffi==0.1.11 sentencepiece==0.2.1 numba==0.65.1
    orjson psutil starlette fastapi dill msgspec pyzmq pybase64 requests pydantic setproctitle einops tqdm pillow packaging
    aiohttp uvicorn uvloop xxhash IPython nvidia-ml-py python-multipart partial_json_parser distro prometheus-client
    tiktoken interegular loguru'
  [numba]='numba-cuda[cu13]==0.30.4 numba==0.68.1 pytest filecheck==1.0.6'
  [cuda_core]='cuda-core==1.2.2 cuda-bindings==13.5.0 numpy'
  [cupy]='cupy-cuda13x==14.2.0'
  [warp]='warp-lang==1.19.0'
  [onnxruntime]='onnxruntime-gpu==1.31.1 onnx==1.23.2 numpy'
  [rmm]='rmm-cu13==26.10.0'
)
# SGLang's with what its memory pool imports; and PyTorch's wheel without Triton and NVIDIA's libraries, whose places hostcuda's have: small enough for .ci/run.
declare -A without_dependencies=(
  [torch_alone]='torch==2.15.0'
  [sglang]='sglang==0.5.23 sglang-kernel==0.4.10 compressed-tensors==0.18.0 gguf torch==2.14.1 torchvision'
)
torch_tests=(programs_test.py torch_test.py torch_state_test.py torch_growable_test.py torch_kv_arena_test.py
  torch_peaks_test.py torch_report_test.py torch_multiprocessing_test.py torch_publication_test.py
  torch_control_test.py memory_saver_test.py)
declare -A tests=(
  [torch]="${torch_tests[*]}" [torch_2_8]="${torch_tests[*]}"
  [torch_alone]="programs_test.py torch_state_test.py torch_growable_test.py torch_kv_arena_test.py
    torch_multiprocessing_test.py torch_publication_test.py torch_control_test.py vllm_kv_cache_test.py"
  [vllm]="vllm_test.py vllm_publication_test.py vllm_kv_cache_test.py"
  [sglang]="sglang_kv_cache_test.py"
  [numba]="programs_test.py numba_test.py hostcuda/python/tests/numba_kernels_test.py"
)
declare -A kernels=([numba]=numba) # --kernels of hostcuda; of the others: skip

wheel=
if [[ ${1:-} == --wheel ]]; then
  [[ -f ${2:-} ]] || die "--wheel needs the file of a wheel, not '${2:-}'"
  wheel=$(realpath "$2")
  shift 2
fi
frameworks=("$@")
(($#)) || frameworks=(torch)
[[ $* != all ]] || mapfile -t frameworks < <(printf '%s\n' "${!packages[@]}" | sort)
for name in "${frameworks[@]}"; do
  [[ ${packages[$name]:-} ]] || die "no framework '$name'; there are: ${!packages[*]}, all"
done

environments=$STILLMAP_ROOT/.cache/frameworks
ensure_machine
for name in "${frameworks[@]}"; do
  venv=$environments/$name
  [[ ! -e $venv/complete ]] || continue
  say "installing ${packages[$name]} into $venv"
  rm -rf "$venv"
  python3 -m venv "$venv"
  # shellcheck disable=SC2086  # several words
  "$venv/bin/pip" install --quiet --disable-pip-version-check ${packages[$name]}
  [[ ! ${without_dependencies[$name]:-} ]] ||
    # shellcheck disable=SC2086
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps ${without_dependencies[$name]}
  touch "$venv/complete"
done
# hostcuda's runtime for CUDA 12 is built against NVIDIA's headers of it, which come with PyTorch 2.8.
for folder in "$environments"/torch_2_8/lib/python3*/site-packages/nvidia/cuda_runtime/include; do
  [[ ! -d $folder ]] || export STILLMAP_CUDA12_INCLUDE=${STILLMAP_CUDA12_INCLUDE:-$folder}
done
hostcuda/python/wheel.sh --stage-only
if [[ ! $wheel ]]; then
  say "building the package stillmap"
  rm -rf out/frameworks/wheel
  python3 -m venv out/frameworks/build_venv
  out/frameworks/build_venv/bin/pip wheel --quiet --disable-pip-version-check --no-deps \
    --wheel-dir out/frameworks/wheel .
  wheel=$(echo out/frameworks/wheel/*.whl)
fi

status=0 results=()
for name in "${frameworks[@]}"; do
  venv=$environments/$name
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$wheel"
  programs=()
  for test in ${tests[$name]:-${name}_test.py}; do
    [[ $test == */* ]] || test=python/tests/frameworks/$test
    programs+=("$test")
  done
  for example in python/examples/frameworks/"${name%_2_8}"_*.py; do
    # CuPy brings a CUDA runtime that does not start on hostcuda.
    [[ $name == cupy || ! -e $example ]] || programs+=("$example")
  done
  for program in "${programs[@]}"; do
    say "$name: $program"
    outcome=passed
    rm -rf out/frameworks/here
    mkdir -p out/frameworks/here
    (
      cd out/frameworks/here # so that nothing of the repository is imported, and for what examples write
      PYTHONPATH="$STILLMAP_ROOT/out/wheel/source" "$venv/bin/python" -c \
        'import sys; from stillmap_hostcuda import launcher; sys.exit(launcher.main())' \
        run --kernels "${kernels[$name]:-skip}" --config memory=4G -- "$venv/bin/python" "$STILLMAP_ROOT/$program"
    ) || outcome=FAILED status=1
    results+=("$(printf '%-12s %-44s %s' "$name" "$program" "$outcome")")
  done
done
printf '%s\n' "${results[@]}"
exit "$status"
