#!/bin/sh
echo "bazel coverage is not available with Debian's Bazel 4.2.3" >&2
exit 1
