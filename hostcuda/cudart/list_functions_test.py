"""The list of the runtime's functions: how headers are read, and the check of a toolkit against the list."""
import contextlib
import io
import pathlib
import tempfile
import unittest

import list_functions

HEADER = """
#define CUDART_VERSION  %d
  #define cudaMemcpy                  __CUDART_API_PTDS(cudaMemcpy)
extern __host__ cudaError_t CUDARTAPI cudaMalloc(void **devPtr, size_t size);
extern __host__ cudaError_t CUDARTAPI_CDECL cudaFree(void *devPtr);
// extern cudaError_t CUDARTAPI cudaComment(void);
extern __host__ struct cudaChannelFormatDesc CUDARTAPI cudaCreateChannelDesc(int x);
%s
"""


class Lists(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def header(self, version, more=""):
        (pathlib.Path(self.folder.name) / "cuda_runtime_api.h").write_text(HEADER % (version, more))
        return self.folder.name

    def check(self, folder):
        """The exit status, and what was printed."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                list_functions.main(["--check", folder])
            except SystemExit as exit_:
                return 1, str(exit_.code)
        return 0, printed.getvalue()

    def test_prototypes_variants_and_new_names(self):
        renamed = "#define cudaGetDeviceProperties cudaGetDeviceProperties_v2"
        major, names = list_functions.functions(self.header(13000, renamed))
        self.assertEqual(major, 13)
        self.assertEqual(names, {"cudaMalloc", "cudaFree", "cudaMemcpy", "cudaMemcpy_ptds", "cudaCreateChannelDesc",
                                 "cudaGetDeviceProperties_v2"})

    def test_a_toolkit_whose_functions_are_listed(self):
        self.assertEqual(self.check(self.header(12090))[0], 0)

    def test_a_function_that_is_not_listed(self):
        more = "extern __host__ cudaError_t CUDARTAPI cudaBrandNew(int a);"
        status, text = self.check(self.header(13070, more))
        self.assertEqual(status, 1)
        self.assertIn("cudaBrandNew", text)
        self.assertNotIn("cudaMalloc", text)

    def test_a_function_of_the_other_version(self):
        # It left with CUDA 13, so a toolkit of CUDA 13 that has it again is news.
        old = sorted(list_functions.listed(12) - list_functions.listed(13))[0]
        more = "extern __host__ cudaError_t CUDARTAPI %s(int a);" % old
        self.assertEqual(self.check(self.header(12060, more))[0], 0)
        self.assertEqual(self.check(self.header(13060))[0], 0)
        self.assertEqual(self.check(self.header(13060, more))[0], 1)

    def test_a_toolkit_of_another_version(self):
        self.assertIn("CUDA 11", self.check(self.header(11080))[1])

    def test_the_check_writes_nothing(self):
        before = list_functions.TARGET.read_bytes()
        self.check(self.header(13070, "extern __host__ cudaError_t CUDARTAPI cudaBrandNew(int a);"))
        self.assertEqual(list_functions.TARGET.read_bytes(), before)


if __name__ == "__main__":
    unittest.main()
