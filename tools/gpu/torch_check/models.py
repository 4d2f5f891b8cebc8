"""The models of tools/trace_models.py, on a real device."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))

# GPT-2 small, and Llama 3.2 1B's shape; for serving, half as deep, with a vocabulary of its size's
# time. `tiny` is to try the scripts themselves.
GPT2 = {"shape": (12, 768, 12), "vocabulary": 50257, "batch": 16, "length": 1024}
LLAMA = {"shape": (16, 2048, 32, 8, 8192), "vocabulary": 128256, "batch": 2, "length": 2048}
SERVED = {"shape": (8, 2048, 16, 8, 8192), "vocabulary": 32000}
TINY_GPT2 = {"shape": (2, 64, 4), "vocabulary": 512, "batch": 2, "length": 64}
TINY_LLAMA = {"shape": (2, 64, 4, 2, 128), "vocabulary": 512, "batch": 2, "length": 64}


def size_of(model, tiny):
    if model == "gpt2":
        return TINY_GPT2 if tiny else GPT2
    if model == "served":
        return TINY_LLAMA if tiny else SERVED
    return TINY_LLAMA if tiny else LLAMA


def folder_of_models(here=HERE):
    """Beside these scripts in a bundle; two folders up in the repository."""
    for folder in (here, os.path.dirname(here), os.path.dirname(os.path.dirname(here))):
        if os.path.exists(os.path.join(folder, "trace_models.py")):
            return folder
    raise FileNotFoundError("there is no trace_models.py beside these scripts or above them")


def trace_models(torch):
    sys.path.append(folder_of_models())
    import trace_models as module

    # There it calls the fused kernel by its name, which the processor does not have. cuDNN's would
    # be built anew for each length.
    module.flash_attention = lambda q, k, v, causal=True: (
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    )
    torch.backends.cuda.enable_cudnn_sdp(False)
    return module


def gpt2(torch, size, device):
    with torch.device(device):
        return trace_models(torch).Gpt2(
            *size["shape"], vocabulary=size["vocabulary"], positions=size["length"]
        )


def llama(torch, size, device):
    """In bfloat16 from the start: a float32 one that is converted would be the peak."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return trace_models(torch).Llama(*size["shape"], vocabulary=size["vocabulary"])
    finally:
        torch.set_default_dtype(before)


def mixed_precision(torch, model, device, cache=True):
    """What training has around the forward pass: GPT-2 is float32 and computes in bfloat16."""
    return torch.autocast(
        device, dtype=torch.bfloat16, enabled=model == "gpt2", cache_enabled=cache
    )
