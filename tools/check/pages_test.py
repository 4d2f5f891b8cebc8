"""What tools/check/pages.py finds, in files that are planted."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import pages  # noqa: E402

TWO = "# Two\n\n## A heading: `of code`, and [a link](one.md)\n\n```\n# no heading\n```\n"


def problems(**planted):
    files = {path: "" for path in pages.SPECIFICATIONS}
    files.update({"docs/one.md": "[two](two.md)", "docs/two.md": TWO})
    files.update(planted)
    return list(pages.problems_of(files, files.__contains__))


class Pages(unittest.TestCase):
    def test_a_page_of_ten_minutes(self):
        self.assertEqual(problems(**{"docs/new.md": "word " * 2000}), [])
        for page in ("README.md", "CONTRIBUTING.md", "docs/new.md", "docs/results/new.md", "hostcuda/docs/new.md"):
            self.assertEqual(problems(**{page: "word " * 2001}),
                             [page + ": 2001 words, a page has at most 2000: make it several pages"])

    def test_what_is_no_page_may_be_long(self):
        long = "word " * 3000
        others = {"docs/results/h200/conformance.md": long, "tests/README.md": long, "docs/notes.txt": long}
        self.assertEqual(problems(**others, **{path: long for path in pages.SPECIFICATIONS}), [])

    def test_a_specification_exists(self):
        self.assertIn("does not exist", next(pages.problems_of({}, bool)))

    def test_links_lead_to_files(self):
        self.assertEqual(problems(**{"docs/new.md": "[gone](gone.md)"}), ["docs/new.md: there is no docs/gone.md"])
        self.assertEqual(problems(**{"a/b.md": "[up](../docs/one.md) [out](https://a.b/c.md) `[x](y.md)`"}), [])
        self.assertEqual(problems(**{"README.md": "```\n[x](y.md)\n```\n[one](docs/one.md)"}), [])

    def test_links_lead_to_headings(self):
        good = "[1](two.md#a-heading-of-code-and-a-link) [2](#here)\n# Here"
        self.assertEqual(problems(**{"docs/new.md": good}), [])
        self.assertEqual(problems(**{"docs/new.md": "[1](two.md#no-heading)"}),
                         ["docs/new.md: docs/two.md has no heading #no-heading"])

    def test_sources_name_pages(self):
        self.assertEqual(problems(**{"a.h": "// docs/two.md#two", "b.py": "# see https://c.d/docs/x.md"}), [])
        self.assertEqual(problems(**{"a.h": "// docs/gone.md#x"}), ["a.h: there is no docs/gone.md"])
        self.assertEqual(problems(**{"a.cpp": "// docs/two.md#x."}), ["a.cpp: docs/two.md has no heading #x"])

    def test_the_pages_of_this_project(self):
        self.assertEqual(pages.main(), 0)


if __name__ == "__main__":
    unittest.main()
