"""ONNX Runtime on Stillmap: the options of its CUDA provider. Pass a model to run a session (on a GPU, or on hostcuda with kernels=skip)."""

import sys

import stillmap.onnxruntime

memory = stillmap.onnxruntime.Allocator(device=0, limit=1 << 30)
provider = ("CUDAExecutionProvider", memory.provider_options())
print(provider)
if len(sys.argv) > 1:
    import onnxruntime

    session = onnxruntime.InferenceSession(sys.argv[1], providers=[provider])
    print("held:", memory.allocator.stats()["total"]["live"], "bytes")
