"""What tools/check/quotes.py finds in documents, with a command that prints what it is told to."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import quotes  # noqa: E402

COMMAND = """#!/bin/sh
case "$*" in
  'trace replay --help') echo '--map FILE' ;;
  'trace --help') echo 'replay' ;;
  *--help) exit 2 ;;
  'print') printf 'the first  1.5 GiB in 3 pieces\\nthe second 17 ns\\nthe third\\n' ;;
  *) echo "ran $*" && exit 1 ;;
esac
"""


class Quotes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        program = pathlib.Path(folder.name) / "stillmap"
        program.write_text(COMMAND)
        program.chmod(0o755)
        self.checker = quotes.Checker(str(program))

    def faults(self, text):
        return self.checker.check(text)

    def test_commands_exist_and_have_their_options(self):
        self.assertEqual(self.faults("`stillmap trace replay a --map x`, `stillmap trace`"), [])
        self.assertEqual(self.faults("```\nstillmap trace replay a --map x   # --no option\n```\n"), [])
        self.assertIn("no option --maps", self.faults("`stillmap trace replay --maps=x`")[0])
        self.assertIn("no option --no", self.faults("```\n$ stillmap trace replay --no\nran trace replay --no\n```\n")[0])
        self.assertIn("no such command", self.faults("`stillmap tracks`")[0])
        self.assertEqual(self.faults("`stillmap trace replay x -- program --its own`"), [])

    def test_figures_are_those_that_are_printed(self):
        marked = "<!-- figures: stillmap print -->\nIn %s.\n<!-- end -->\n"
        self.assertEqual(self.faults(marked % "1.5 GiB and 3 pieces"), [])
        self.assertEqual(self.faults(marked % "3.47 GiB"), ["'3.47 GiB' is no figure of `stillmap print`"])
        self.assertIn("status 1", self.faults("<!-- figures: stillmap fail -->\nx\n<!-- end -->\n")[0])

    def test_lines_of_a_session_are_printed_in_order(self):
        block = "```\n$ stillmap print\n%s\n```\n"
        self.checker.helps[("print",)] = "help"
        self.assertEqual(self.faults(block % "the first  1.5 GiB in 3 pieces\nthe second ... ns"), [])
        self.assertIn("does not print 'the second'", self.faults(block % "the second")[0])
        self.assertEqual(self.faults(quotes.ONE_SESSION + "\n" + block % "the second"), [])
        self.assertIn("does not print 'the first", self.faults(block % "the third\nthe first ...")[0])


if __name__ == "__main__":
    unittest.main()
