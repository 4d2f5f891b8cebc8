"""Tensors of every kind that the installed PyTorch has, by enumeration, and what tells one from another.

torch_state_test.py saves and restores each.
"""

import hashlib
import json
import warnings

import torch
import torch.masked
import torch.nested._internal.nested_tensor
import torch.sparse

warnings.simplefilter("ignore")
DEVICE = torch.device("cuda", 0)


class Subclass(torch.Tensor):
    """As users define it: operations return it, too."""


class Slotted(torch.Tensor):
    __slots__ = ["scale"]


class Answering(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        raise AssertionError(f"{function} was called")


class Dispatching(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        raise AssertionError(f"{function} was called")


def known(n):
    return (torch.arange(n, dtype=torch.int64) * 7 % 251).to(torch.uint8)


def fill(t):
    """Writes known bytes, by a copy: no kernel runs."""
    storage = t.untyped_storage()
    alias = torch.empty(0, dtype=torch.uint8, device=DEVICE).set_(storage, 0, (storage.nbytes(),), (1,))
    alias.copy_(known(storage.nbytes()))
    return t


def plain(dtype=torch.float32, shape=(4, 6)):
    return fill(torch.empty(shape, dtype=dtype, device=DEVICE))


def indices(*rows):
    t = torch.empty((len(rows), len(rows[0])), dtype=torch.int64, device=DEVICE)
    return t.copy_(torch.tensor(rows))


def coo(coalesced, dense=()):
    return torch.sparse_coo_tensor(indices((0, 1, 1), (2, 0, 2)), plain(shape=(3, *dense)), (2, 3, *dense),
                                   is_coalesced=coalesced, check_invariants=False)


def compressed(layout, batch=()):
    values = plain(shape=(*batch, 3, 2, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else (*batch, 3))
    first, second = (torch.empty((*batch, n), dtype=torch.int32, device=DEVICE) for n in (3, 3))
    first.copy_(torch.tensor([0, 1, 3]).expand(*batch, 3)), second.copy_(torch.tensor([1, 0, 1]).expand(*batch, 3))
    return torch.sparse_compressed_tensor(first, second, values, (*batch, *(2 * (4 if values.dim() > 2 + len(batch) else 2,))),
                                          layout=layout, check_invariants=False)


def nested():
    return torch._nested_view_from_buffer(plain(shape=(18,)), torch.tensor([[2, 3], [4, 3]]),
                                          torch.tensor([[3, 1], [3, 1]]), torch.tensor([0, 6]))


def jagged():
    offsets = torch.empty(3, dtype=torch.int64, device=DEVICE)
    offsets.copy_(torch.tensor([0, 2, 6]))
    return torch.nested.nested_tensor_from_jagged(plain(shape=(6, 3)), offsets, min_seqlen=2, max_seqlen=4)


def quantized(scheme, dtype=torch.quint8):
    if "per_tensor" in str(scheme):
        return fill(torch._empty_affine_quantized((4, 6), scale=0.1, zero_point=3, dtype=dtype, device=DEVICE))
    kind = torch.float32 if "float" in str(scheme) else None
    scales = torch.tensor([0.1, 0.2, 0.3, 0.7], dtype=kind or torch.float64).to(DEVICE)
    zero_points = torch.tensor([1, 2, 3, 4], dtype=kind or torch.int64).to(DEVICE)
    return fill(torch._empty_per_channel_affine_quantized((4, 6), scales=scales, zero_points=zero_points, axis=0,
                                                          dtype=dtype, device=DEVICE))


def is_quantized(dtype):
    return "torch.q" in str(dtype)


def of_class(cls):
    if cls.__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
        return torch.Tensor._make_subclass(cls, plain())
    return torch.Tensor._make_wrapper_subclass(cls, (4, 6), dtype=torch.float32, device=DEVICE)


def name_of(cls):
    return f"{cls.__module__.rpartition('.')[2]}.{cls.__qualname__}"


def subclasses(cls):
    for sub in cls.__subclasses__():
        yield sub
        yield from subclasses(sub)


def having(t, **attributes):
    for name, value in attributes.items():
        setattr(t, name, value)
    return t


def local():
    class Local(torch.Tensor):
        pass
    return plain().as_subclass(Local)


def in_inference_mode(make):
    with torch.inference_mode():
        return make()


def all_of(kind):
    return sorted({v for v in vars(torch).values() if isinstance(v, kind)}, key=str)


def layouts():
    made = {torch.strided: plain, torch.sparse_coo: lambda: coo(True), torch.jagged: jagged,
            torch._mkldnn: lambda: torch.ones(3).to_mkldnn()}
    for layout in all_of(torch.layout):
        if str(layout) in ("torch.sparse_csr", "torch.sparse_csc", "torch.sparse_bsr", "torch.sparse_bsc"):
            made[layout] = lambda layout=layout: compressed(layout)
        yield str(layout), made.get(layout) or (lambda layout=layout: torch.empty((4, 6), layout=layout, device=DEVICE))


def views():
    c = plain(torch.complex64)
    base = plain()
    return {
        "slice": base[1:3], "slice with steps": base[::2, 1::3], "one element": base[2, 3], "transpose": base.t(),
        "permute": plain(shape=(2, 3, 4)).permute(2, 0, 1), "expand": base[:1].expand(5, 6),
        "as_strided, overlapping": base.as_strided((5, 4), (1, 2), 3), "unfold": base.unfold(1, 3, 1),
        "diagonal": base.diagonal(), "channels last": fill(torch.empty((2, 3, 4, 5), device=DEVICE,
                                                                      memory_format=torch.channels_last)),
        "real": c.real, "imag": c.imag, "view_as_real": torch.view_as_real(c), "view_as_complex":
        torch.view_as_complex(plain(shape=(4, 2))), "conj": c.conj(), "conj, transpose": c.mH, "neg": c.conj().imag,
        "conj and neg": torch._neg_view(c.conj()), "neg of a float": torch._neg_view(base), "another dtype":
        base.view(torch.int16), "no elements of a storage": base[2:2], "detach": base.detach(), "0 dimensions":
        plain(shape=()), "no elements": torch.empty((0, 3), device=DEVICE), "no elements, strides":
        torch.empty_strided((0, 3), (7, 2), device=DEVICE), "storage larger than the tensor": base[3],
    }


def kinds(pool):
    """(group, name, a function that makes one in the pool's memory) of each."""
    for dtype in all_of(torch.dtype):
        yield "dtype", str(dtype), (lambda dtype=dtype: quantized(torch.per_tensor_affine, dtype)) if is_quantized(
            dtype) else (lambda dtype=dtype: plain(dtype))
    for name, make in layouts():
        yield "layout", name, make
    yield "layout", "torch.sparse_coo, not coalesced", lambda: coo(False)
    yield "layout", "torch.sparse_coo, dense dimensions", lambda: coo(True, (2,))
    yield "layout", "torch.sparse_coo, no elements", lambda: torch.sparse_coo_tensor(size=(2, 3), device=DEVICE)
    yield "layout", "torch.sparse_coo, gradients", lambda: coo(True).requires_grad_()
    yield "layout", "torch.sparse_csr, batched", lambda: compressed(torch.sparse_csr, (2,))
    yield "layout", "torch.strided, nested", nested
    for scheme in all_of(torch.qscheme):
        yield "quantised", str(scheme), lambda scheme=scheme: quantized(scheme)
    with pool.use():
        made = views()
    yield from (("view", name, lambda t=t: t) for name, t in made.items())
    for cls in sorted(set(subclasses(torch.Tensor)), key=lambda cls: (cls.__module__, cls.__qualname__)):
        yield "class", name_of(cls), lambda cls=cls: of_class(cls)
    yield "class", "of a function", local
    p = torch.nn.Parameter
    yield "state", "gradients", lambda: plain().requires_grad_()
    yield "state", "gradients, a view of a parameter", lambda: p(plain()).t()
    yield "state", "gradients, conj", lambda: p(plain(torch.complex64)).conj()
    yield "state", "Parameter", lambda: p(plain())
    yield "state", "Parameter, no gradients", lambda: p(plain(), requires_grad=False)
    yield "state", "Parameter of a subclass", lambda: p(plain().as_subclass(Subclass))
    yield "state", "Parameter, sparse", lambda: p(coo(True))
    yield "state", "Buffer", lambda: torch.nn.Buffer(plain(), persistent=False)
    yield "state", "inference mode", lambda: in_inference_mode(plain)
    yield "state", "attributes", lambda: having(p(plain()), axis_name="w", axes=[0, {"a": None}], share=False, scale=0.1)
    yield "state", "attributes in slots", lambda: having(plain().as_subclass(Slotted), scale=0.5)
    yield "state", "attribute, a function", lambda: having(p(plain()), weight_loader=having)
    yield "state", "attribute, a tensor", lambda: having(p(plain()), main_grad=plain())
    yield "state", "uninitialised parameter", lambda: torch.nn.parameter.UninitializedParameter(device=DEVICE)
    yield "state", "efficient zero", lambda: torch._efficientzerotensor((3,), device=DEVICE)
    yield "state", "on the CPU", lambda: torch.ones(3)
    yield "state", "on meta", lambda: torch.ones(3, device="meta")


def hash_of(t):
    storage = t.untyped_storage()
    alias = torch.empty(0, dtype=torch.uint8, device=t.device).set_(storage, 0, (storage.nbytes(),), (1,))
    return hashlib.sha256(bytes(alias.cpu().tolist())).hexdigest()[:16]


def anatomy(t):
    """All that tells tensors apart, as JSON has it."""
    with torch._C.DisableTorchFunctionSubclass():
        made = {"class": f"{type(t).__module__}.{type(t).__qualname__}", "dtype": str(t.dtype), "layout": str(t.layout),
                "device": str(t.device), "grad": t.requires_grad, "conj": t.is_conj(), "neg": t.is_neg(),
                "inference": t.is_inference(), "attributes": {**vars(t), "scale": getattr(t, "scale", None)}}
        inner = t.detach()
        if t.is_nested:
            made["nested"] = [inner._nested_tensor_size().tolist(), inner._nested_tensor_strides().tolist(),
                              inner._nested_tensor_storage_offsets().tolist(), anatomy(inner.values())]
        elif t.layout is torch.sparse_coo:
            made["sparse"] = [list(t.shape), t.is_coalesced(), t.sparse_dim(), t.dense_dim(),
                              anatomy(inner._indices()), anatomy(inner._values())]
        elif t.layout is not torch.strided:
            by_row = t.layout in (torch.sparse_csr, torch.sparse_bsr)
            made["sparse"] = [list(t.shape), t.dense_dim(), anatomy(inner.values())] + [
                anatomy(part) for part in ((inner.crow_indices(), inner.col_indices()) if by_row else
                                           (inner.ccol_indices(), inner.row_indices()))]
        else:
            made["strided"] = [list(t.shape), list(t.stride()), t.storage_offset()]
            if t.numel():
                made["strided"] += [t.untyped_storage().nbytes(), hash_of(t)]
        if t.is_quantized:
            per_tensor = t.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric)
            made["quantised"] = [str(t.qscheme())] + (
                [t.q_scale(), t.q_zero_point()] if per_tensor else
                [t.q_per_channel_axis(), *([str(v.dtype), v.tolist()] for v in
                                           (t.q_per_channel_scales(), t.q_per_channel_zero_points()))])
    return json.loads(json.dumps(made))
