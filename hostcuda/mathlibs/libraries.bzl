"""The stand-ins: source, the beginning of its functions' names, and the libraries made of it, each with
the version that its symbols have."""

def _same(*names):
    return [(name, name) for name in names]

STAND_INS = [
    ("cublas", "cublas", _same("libcublas.so.12", "libcublas.so.13")),
    ("cublasLt", "cublasLt", _same("libcublasLt.so.12", "libcublasLt.so.13")),
    ("cudnn", "cudnn", _same("libcudnn.so.9")),
    ("cufft", "cufft", _same("libcufft.so.11", "libcufft.so.12")),
    ("cufile", "cuFile", _same("libcufile.so.0")),
    ("cupti", "cupti", _same("libcupti.so.12", "libcupti.so.13")),
    ("curand", "curand", _same("libcurand.so.10")),
    ("cusolver", "cusolver", _same("libcusolver.so.11", "libcusolver.so.12")),
    ("cusparse", "cusparse", _same("libcusparse.so.12")),
    ("cusparseLt", "cusparseLt", _same("libcusparseLt.so.0")),
    ("nccl", "nccl", _same("libnccl.so.2")),
    ("nvshmem", "nvshmem", [("libnvshmem_host.so.3", "NVSHMEM")]),
]
