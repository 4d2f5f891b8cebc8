import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import quoted_code  # noqa: E402

CODE = "int before;\n  // [grow]\n  int a;\n    int b;\n  // [/grow]\nint after;\n"


def page(code, name="grow"):
    return "Text\n\n<!-- examples/a.cpp: %s -->\n```cpp\n%s```\nmore\n" % (name, code)


class QuotedCode(unittest.TestCase):
    def test_equal_lines_are_right_whatever_their_indentation(self):
        self.assertEqual(quoted_code.compare(page("int a;\n  int b;\n"), lambda file: CODE)[1], [])

    def test_another_line_is_found_and_put_right(self):
        fixed, wrong = quoted_code.compare(page("int c;\n"), lambda file: CODE)
        self.assertEqual(wrong, ["[grow] is not what examples/a.cpp says"])
        self.assertEqual(fixed, page("int a;\n  int b;\n"))

    def test_a_region_that_is_gone_is_found(self):
        fixed, wrong = quoted_code.compare(page("int a;\n", "shrink"), lambda file: CODE)
        self.assertEqual(wrong, ["examples/a.cpp has no region [shrink]"])
        self.assertEqual(fixed, page("int a;\n", "shrink"))

    def test_the_pages_of_this_project_quote_their_examples(self):
        self.assertEqual(quoted_code.main(), 0)


if __name__ == "__main__":
    unittest.main()
