"""Tests of the directories for large files, and of the files' sizes."""

import os
import tempfile
import unittest

import places
from parts.save_load import FIRST, size_for

MOUNTS = """/dev/a / ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
/dev/b /tmp/disk xfs rw 0 0
"""


class PlacesTest(unittest.TestCase):
    def test_the_innermost_mount_counts(self):
        with tempfile.TemporaryDirectory() as folder:
            mounts = os.path.join(folder, "mounts")
            with open(mounts, "w", encoding="utf-8") as out:
                out.write(MOUNTS)
            self.assertEqual(places.filesystem("/there/is/none", mounts), "ext4")
            self.assertEqual(places.filesystem("/tmp/none", mounts), "tmpfs")
            self.assertEqual(places.filesystem("/tmp/disk/none", mounts), "xfs")
            self.assertEqual(places.filesystem("/tmpnone", mounts), "ext4")
        self.assertIsNone(places.filesystem("/", "/there/is/none"))

    def test_what_cannot_be_used_says_why(self):
        self.assertIn("cannot be written", places.usable("/there/is/none", False, 1))
        with tempfile.TemporaryDirectory() as folder:
            in_memory = places.filesystem(folder) == "tmpfs"
            self.assertIsNone(places.usable(folder, in_memory, 1))
            self.assertIn(f"{folder} is ", places.usable(folder, not in_memory, 1))
            self.assertIn("are needed", places.usable(folder, in_memory, 1 << 60))

    def test_sizes_by_the_time_there_is(self):
        self.assertEqual(size_for(10 << 30, 8 << 30), 8 << 30)
        self.assertEqual(size_for(3 << 30, 8 << 30), 2 << 30)
        self.assertEqual(size_for(-1, 8 << 30), FIRST)


if __name__ == "__main__":
    unittest.main()
