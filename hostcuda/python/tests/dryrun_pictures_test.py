"""The pictures of a dry run, from histories written by hand."""
import pathlib
import sys
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from stillmap_hostcuda import dryrun_pictures as pictures  # noqa: E402

GIB = 1 << 30
SVG = "{http://www.w3.org/2000/svg}"


def moment(held, blocks, places, what="tensors", event=1):
    return {"what": what, "event": event, "held": held, "live": sum(size for _, size, where in blocks if where >= 0),
            "segments": [[0, held, blocks]], "places": places}


def report(held, live, moments):
    return {"held": held, "live": live,
            "history": {"curve": [[0, 0, 0, held], [1, 0, live, held], [2, live, live, held]], "events": 3,
                        "lost": False, "moments": moments}}


HEAP = moment(4 * GIB, [[0, GIB, 0], [2 * GIB, GIB, 1], [3 * GIB, GIB, -1]],
              [["a.py:1 f<x>", GIB, 3], ["b.py:2 g", GIB, 1]])


class Pictures(unittest.TestCase):
    def draw(self, *runs, program="train.py --batch 8"):
        text = pictures.draw(program, "the subtitle", list(runs))
        return text, xml.etree.ElementTree.fromstring(text)

    def bytes_of(self, root, fill):
        """The memory that boxes of a colour stand for, in a picture whose largest heap is 4 GiB."""
        pixels = sum(float(box.get("width")) for box in root.iter(SVG + "rect")
                     if box.get("fill") == fill and float(box.get("height")) == pictures.ROW)
        return pixels * 4 * GIB / (pictures.ROWS * (pictures.WIDTH - 2 * pictures.MARGIN))

    def test_area_is_memory(self):
        _, root = self.draw(("native", report(4 * GIB, 2 * GIB, [HEAP])))
        for fill in (*pictures.COLOURS[:2], pictures.FREE, pictures.PENDING):
            self.assertAlmostEqual(self.bytes_of(root, fill) / GIB, 1, places=2, msg=fill)

    def test_all_allocators_have_one_scale_and_one_colour_for_a_line(self):
        small = moment(2 * GIB, [[0, 2 * GIB, 0]], [["b.py:2 g", 2 * GIB, 1]])
        _, root = self.draw(("native", report(4 * GIB, 2 * GIB, [HEAP])), ("expandable", report(2 * GIB, GIB, [small])))
        self.assertAlmostEqual(self.bytes_of(root, pictures.COLOURS[0]) / GIB, 3, places=2)  # of b.py

    def test_small_pieces_are_drawn_together(self):
        blocks = [[i * 4096, 2048, 0] for i in range(100_000)]
        text, root = self.draw(("native", report(GIB, GIB, [moment(GIB, blocks, [["a.py:1 f", GIB, 100_000]])])))
        self.assertLess(len(text), 3_000_000)
        self.assertGreater(len(list(root.iter(SVG + "rect"))), 100)

    def test_lines_are_listed_and_quoted(self):
        text, root = self.draw(("native", report(4 * GIB, 2 * GIB, [HEAP])), program="a & <b>")
        self.assertIn("a.py:1 f&lt;x&gt;", text)
        shown = ["".join(one.itertext()) for one in root.iter(SVG + "text")]
        self.assertIn("3 blocks", shown)
        self.assertIn("a & <b>" * 2, shown)  # also as the whole of what may be shortened
        self.assertIn("the peak", shown)

    def test_two_moments_have_letters(self):
        _, root = self.draw(("native", report(4 * GIB, 2 * GIB, [HEAP, dict(HEAP, what="growth", event=2)])))
        shown = [one.text or "" for one in root.iter(SVG + "text")]
        self.assertTrue({"A", "B"} <= set(shown))
        self.assertTrue(any(text.startswith("B: The heap after the request") for text in shown))

    def test_an_allocator_without_a_history(self):
        sampled = {"held": GIB, "live": GIB, "history": {"curve": [[0.0, 0, 0, GIB], [0.5, 0, GIB, GIB]],
                                                         "sampled": 0.002}}
        text, _ = self.draw(("async", sampled), ("stillmap", {"held": 1, "live": 1}))
        self.assertIn("sampled every 2 ms", text)
        self.assertIn("0.5 s of the dry run", text)
        self.assertNotIn("Stillmap:", text)

    def test_one_of_several_devices_is_named(self):
        found = report(4 * GIB, 2 * GIB, [HEAP])
        found["history"].update(device=3, devices=4)
        self.assertIn("This is device 3, which has the most of the 4", self.draw(("native", found))[0])

    def test_ticks(self):
        for most in (1, GIB, 5 * GIB, 7 * GIB, 15 * GIB, 140 * GIB):
            self.assertTrue(3 <= most / pictures.tick(most) <= 6 or most == 1, (most, pictures.tick(most)))


if __name__ == "__main__":
    unittest.main()
