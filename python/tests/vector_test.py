"""DeviceVector: element types, changes, reading back."""

import array
import unittest

import stillmap
from support import MiB, TestCase, driver, numpy_or_skip


class Types(TestCase):
    CASES = {
        "bool": [True, False], "int8": [-128, 127], "int16": [-5], "int32": [-2**31], "int64": [2**63 - 1],
        "uint8": [255], "uint16": [65535], "uint32": [2**32 - 1], "uint64": [2**64 - 1],
        "float16": [1.5, -2], "float32": [0.25], "float64": [1e300], "complex64": [1 + 2j, 3], "complex128": [-1j],
    }

    def test_every_type_comes_back(self):
        for name, values in self.CASES.items():
            with self.subTest(name), stillmap.DeviceVector(name, values) as v:
                self.assertEqual((v.dtype, v.tolist(), v[0]), (name, values, values[0]))
                self.assertEqual(v.nbytes, len(values) * v.itemsize)
                self.assertEqual(len(bytes(v.to_host())), v.nbytes)

    def test_spellings(self):
        for given, name in (("<f4", "float32"), ("i8", "int64"), ("?", "bool"), (float, "float64"), (int, "int64")):
            self.assertEqual(stillmap.DeviceVector(given).dtype, name)
        for wrong in ("f3", ">f4", "", "object", 3, list, "O", "S4"):
            self.assertRaisesSaying(TypeError, "element type", stillmap.DeviceVector, wrong)

    def test_numpy_types_and_arrays(self):
        numpy = numpy_or_skip()
        for kind in (numpy.float32, numpy.dtype("f4"), "f4"):
            v = stillmap.DeviceVector(kind, numpy.arange(5, dtype="f4"))
            self.assertTrue((numpy.frombuffer(v.to_host(), v.dtype) == numpy.arange(5)).all())
        self.assertTrue((v.numpy() == numpy.arange(5)).all())
        self.assertRaisesSaying(TypeError, "convert", v.extend, numpy.arange(3))
        self.assertRaises(ValueError, v.extend, numpy.zeros((4, 4), "f4")[:, 1])
        self.assertEqual(len(v), 5)

    def test_values_that_do_not_fit(self):
        import struct
        for name, value in (("int8", 128), ("uint8", -1), ("float32", None), ("int32", 1.5), ("complex64", "x")):
            with self.subTest(name):
                with self.assertRaises((struct.error, TypeError, ValueError)):
                    stillmap.DeviceVector(name, [value])


class Changes(TestCase):
    def setUp(self):
        super().setUp()
        self.v = stillmap.DeviceVector("int32", range(5), tag="vector")

    def test_as_a_list_changes(self):
        v, model = self.v, list(range(5))
        v.append(7), model.append(7)
        v.extend([8, 9]), model.extend([8, 9])
        v.extend(array.array("i", [10])), model.extend([10])
        v.insert(0, 100), model.insert(0, 100)
        v.insert(-1, 101), model.insert(-1, 101)
        v.insert(999, 102), model.insert(999, 102)
        v[2], v[-1] = 55, 66
        model[2], model[-1] = 55, 66
        self.assertEqual(v.tolist(), model)
        self.assertEqual((v.pop(), v.pop(0), v.pop(-2)), (model.pop(), model.pop(0), model.pop(-2)))
        self.assertEqual((v.tolist(), len(v), v[1], list(v[2:5])), (model, len(model), model[1], model[2:5]))
        v.erase(1, 2)
        del model[1:3]
        self.assertEqual(v.tolist(), model)
        v.resize(len(model) + 3)
        self.assertEqual(v.tolist(), model + [0, 0, 0])
        v.clear()
        self.assertEqual((len(v), v.tolist()), (0, []))

    def test_insert_many(self):
        self.v.insert(2, [20, 21])
        self.assertEqual(self.v.tolist(), [0, 1, 20, 21, 2, 3, 4])

    def test_positions_outside(self):
        for call in (lambda: self.v[5], lambda: self.v[-6], lambda: self.v.pop(9)):
            self.assertRaises(IndexError, call)
        self.assertRaises(IndexError, stillmap.DeviceVector("i4").pop)
        for call in (lambda: self.v.erase(3, 3), lambda: self.v.to_host(0, 6), lambda: self.v.erase(2**63, 2)):
            self.assertRaises(stillmap.InvalidArgumentError, call)
        self.assertRaises(ValueError, lambda: self.v[::2])
        self.assertRaises(stillmap.Error, self.v.resize, 2**62)
        self.assertEqual(self.v.tolist(), [0, 1, 2, 3, 4])

    def test_an_error_of_what_is_asked_for_is_raised(self):
        """It was hidden: an array that could not say where it lies was taken for a list."""
        class Broken:
            @property
            def __cuda_array_interface__(self):
                raise KeyError("suspended")

            @property
            def __cuda_stream__(self):
                raise KeyError("no stream")

        with stillmap.DeviceVector("i4", [1]) as v:
            self.assertRaisesRegex(KeyError, "suspended", v.extend, Broken())
            self.assertEqual(len(v), 1)
        self.assertRaisesRegex(KeyError, "no stream", stillmap.DeviceVector, "i4", stream=Broken())

    def test_another_vector_is_copied_on_the_device(self):
        stream = driver().stream()
        w = stillmap.DeviceVector("int32", stream=stream)
        w.extend(self.v)
        w.extend(w)
        self.assertEqual(w.tolist(), 2 * [0, 1, 2, 3, 4])
        self.assertEqual(w.stream, stream)
        self.assertRaises(TypeError, stillmap.DeviceVector("f4").extend, self.v)
        w.close()

    def test_a_failed_construction_leaves_nothing(self):
        self.assertRaises(TypeError, stillmap.DeviceVector, "f4", 5, tag="half made")
        self.assertNotIn("half made", stillmap.stats()["tags"])

    def test_views(self):
        view = self.v.__dlpack__(stream=1)
        for call in (self.v.close, self.v.pop, self.v.clear, self.v.shrink_to_fit, lambda: self.v.resize(1)):
            self.assertRaises(stillmap.BusyError, call)
        del view
        self.v.close()
        self.assertRaises(stillmap.InvalidArgumentError, self.v.append, 1)

    def test_appended_elements_are_sent_before_they_are_shown(self):
        self.v.append(77)
        shown = self.v.__cuda_array_interface__
        self.assertEqual(shown["shape"], (6,))
        self.v.synchronize()
        self.assertEqual(driver().read(shown["data"][0] + 20, 4), (77).to_bytes(4, "little"))

    def test_many(self):
        numbers = array.array("i", range(MiB))
        self.v.extend(numbers)
        for i in range(2000):
            self.v.append(i)
        self.assertEqual(self.v.tolist(), list(range(5)) + list(numbers) + list(range(2000)))


if __name__ == "__main__":
    unittest.main()
