# The project's folders with C++ code, for scripts: the top folders of the libraries in modules.bzl,
# and what stands beside them. Sourced; sets STILLMAP_FOLDERS.
mapfile -t STILLMAP_FOLDERS < <(
  {
    sed -n 's,^    "\([a-z_]*\)[a-z_/]*": \[.*,\1,p' "$(dirname "${BASH_SOURCE[0]}")/modules.bzl"
    printf '%s\n' hostcuda tools tests bench examples python
  } | sort -u
)
