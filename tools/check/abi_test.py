"""Planted changes of a small C library must fail the check of the ABI, and a library that is built again must not."""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import abi

SOURCE = """
#include <stddef.h>
struct options { size_t struct_size; int limit; unsigned flags; };
enum status { STATUS_OK = 0, STATUS_BUSY = 1 };
typedef struct handle handle;
typedef void (*callback)(const struct options *o, void *user);
enum status lib_open(const struct options *o, handle **h) { (void)o; *h = 0; return STATUS_OK; }
enum status lib_close(handle *h) { (void)h; return STATUS_BUSY; }
void lib_watch(callback c, void *user) { (void)c; (void)user; }
static int hidden(void) { return 1; }
int lib_version(void) { return hidden(); }
"""
# What is replaced, by what, and whether that is a difference.
CHANGES = (
    ("", "", False),
    ("static int hidden(void) { return 1; }", "static int hidden(void) { return 2; }", False),
    ("int limit; unsigned flags;", "long limit; unsigned flags;", True),
    ("int limit; unsigned flags;", "unsigned flags; int limit;", True),
    ("unsigned flags; };", "unsigned flags; size_t more; };", True),
    ("STATUS_BUSY = 1", "STATUS_BUSY = 2", True),
    ("STATUS_BUSY = 1 }", "STATUS_BUSY = 1, STATUS_LOST = 2 }", True),
    ("(*callback)(const struct options *o, void *user)", "(*callback)(const struct options *o, long user)", True),
    ("enum status lib_close(handle *h) { (void)h; return STATUS_BUSY; }", "", True),
    ("int lib_version(void) {", "int lib_version(int which) { (void)which;", True),
    ("int lib_version(void) {", "int lib_added(void) { return 1; }\nint lib_version(void) {", True),
    ("int lib_version(void) {", "long lib_version(void) {", True),
)


@unittest.skipUnless(shutil.which("abidw") and shutil.which("abidiff"), "needs abigail-tools")
class AbiTest(unittest.TestCase):
    def build(self, folder, text):
        folder.mkdir()
        (folder / "lib.c").write_text(text)
        library = folder / "lib.so"
        subprocess.run(["gcc", "-g", "-shared", "-fPIC", "-o", library, folder / "lib.c"], check=True)
        return library

    def test_planted_changes_are_found(self):
        with tempfile.TemporaryDirectory() as top:
            top = pathlib.Path(top)
            stored = top / "stored.abi"
            stored.write_text(abi.described(self.build(top / "first", SOURCE)))
            self.assertNotIn(str(top), stored.read_text())
            for number, (old, new, differs) in enumerate(CHANGES):
                self.assertIn(old, SOURCE)
                library = self.build(top / str(number), SOURCE.replace(old, new, 1) if old else SOURCE)
                found = abi.compare(stored, library)
                self.assertEqual(bool(found), differs, "%r -> %r: %s" % (old, new, found))

    def test_the_stored_description_has_all_that_is_exported(self):
        exported = [line.strip(" ;\n") for line in (abi.HERE / "c_api" / "exports.map").read_text().splitlines()
                    if line.strip().startswith("stillmap_")]
        text = abi.STORED.read_text()
        self.assertEqual([n for n in exported if 'elf-symbol-id="%s@@STILLMAP_C_0"' % n not in text], [])
        self.assertEqual(text.count("<elf-symbol "), len(exported))


if __name__ == "__main__":
    unittest.main()
