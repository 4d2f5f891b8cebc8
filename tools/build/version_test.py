"""The version is defined in vmm/base/version.h. CMake reads it; the other copies are compared here."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def version_of_header():
    text = (ROOT / "vmm/base/version.h").read_text()
    parts = [re.search(r"^#define STILLMAP_VERSION_%s (\d+)$" % part, text, re.MULTILINE)
             for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(part.group(1) for part in parts)


class Version(unittest.TestCase):
    def test_bazel_module_has_it(self):
        text = (ROOT / "MODULE.bazel").read_text()
        self.assertIn('version = "%s",' % version_of_header(), text.split("bazel_dep")[0])

    def test_hostcuda_has_it(self):
        text = (ROOT / "hostcuda/CMakeLists.txt").read_text()
        self.assertIn("project(hostcuda VERSION %s " % version_of_header(), text)

    def test_python_package_has_it(self):
        text = (ROOT / "hostcuda/python/pyproject.toml").read_text()
        self.assertIn('\nversion = "%s"\n' % version_of_header(), text)

    def test_changelog_names_it(self):
        self.assertIn(version_of_header(), (ROOT / "CHANGELOG.md").read_text())


if __name__ == "__main__":
    unittest.main()
