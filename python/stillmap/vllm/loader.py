"""The load format `stillmap`: the first engine loads a model as vLLM does and publishes its weights, in the format of
the kernels; all others attach them, and load nothing.

vLLM 0.33 has weights of another process itself (its `ipc_cache` format, with a daemon that loads them). A model is made
on the meta device, gets its tensors by name, and `process_weights_after_loading` runs in a mode in which only what is
no tensor is made. This loader uses that mode, and vLLM's own fingerprint of a configuration.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from vllm.distributed import get_dp_group, get_pp_group, get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
from vllm.model_executor.model_loader.weight_cache.protocol import (
    UnsupportedQuantForIPCError,
    WeightCacheKey,
    check_ipc_quant_support,
)
from vllm.model_executor.model_loader.weight_cache.utils import export_model_attrs
from vllm.model_executor.utils import weights_already_processed
from vllm.utils.torch_utils import set_default_torch_dtype

import stillmap
import stillmap.torch
from stillmap.torch import _publication

from .options import LoaderOptions

logger = logging.getLogger("vllm.stillmap")

_OPERATION = "stillmap.vllm"
_PARAMETER, _BUFFER = "parameter:", "buffer:"

# What get_external_weight_memory() found, for load_model() of another loader object. By name: attached memory, or a
# claim, which lets other engines wait until this one has loaded.
_found: dict[str, Any] = {}


class StillmapLoader(BaseModelLoader):
    """Attaches the weights of a model, or loads and publishes them. Options: LoaderOptions.

    Parameters are shared, and read-only for the device. Buffers are copied: a model may write to them.
    """

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        self.options = LoaderOptions.read(load_config.model_loader_extra_config)

    def get_external_weight_memory(self, vllm_config: Any) -> int:
        """vLLM subtracts them from what the engine may use: they are not the process's own."""
        name = self._name(vllm_config, vllm_config.model_config)
        if name not in _found:
            _found[name] = self._find(name)
        found = _found[name]
        return 0 if isinstance(found, stillmap.PublicationClaim) else found.shared_bytes

    def download_model(self, model_config: Any) -> None:
        self._loader().download_model(model_config)

    def load_weights(self, model: nn.Module, model_config: Any) -> None:
        """Into a model that has weights already: they become this process's own before they are written to."""
        for p in model.parameters():
            if _publication.memory_of(p) is not None:
                stillmap.torch.make_writable(p)
        self._loader().load_weights(model, model_config)

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> nn.Module:
        if vllm_config.parallel_config.enable_eplb:
            raise ValueError("stillmap.vllm: the load format stillmap cannot serve expert load balancing (enable_eplb), "
                             "which writes to the weights")
        name = self._name(vllm_config, model_config)
        found = _found.pop(name, None) or self._find(name)
        if isinstance(found, stillmap.PublicationClaim):
            with found:
                model = self._loader().load_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
                self._publish(found, model)
            return model
        state = _publication.state_of(_OPERATION, found)
        return self._attach(state, vllm_config, model_config, prefix)

    # ---- names ----

    def _name(self, vllm_config: Any, model_config: Any) -> str:
        """Equal for processes whose weights are equal. Before the model is loaded, which changes its configuration."""
        parallel, speculative = vllm_config.parallel_config, vllm_config.speculative_config
        pp, dp = get_pp_group(), get_dp_group()
        key = WeightCacheKey.from_model_config(
            model_config, get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank(),
            cache_config=vllm_config.cache_config, kernel_config=vllm_config.kernel_config,
            pp_size=pp.world_size, pp_rank=pp.rank_in_group, dp_size=dp.world_size, dp_rank=dp.rank_in_group,
            is_draft=speculative is not None and model_config is speculative.draft_model_config,
            enable_expert_parallel=parallel.enable_expert_parallel,
            expert_placement_strategy=parallel.expert_placement_strategy)
        device = stillmap.device_info(torch.cuda.current_device())["uuid"]
        digest = hashlib.sha256(repr((key, device, self.options.load_format)).encode()).hexdigest()
        first = self.options.name or str(model_config.model).rstrip("/").rpartition("/")[2]
        rank = "".join(f".{kind}{at}of{of}" for kind, at, of in (
            ("tp", key.tp_rank, key.tp_size), ("pp", key.pp_rank, key.pp_size), ("dp", key.dp_rank, key.dp_size))
            if of > 1)
        return f"vllm.{first[:150]}{rank}.{digest[:16]}"

    def _find(self, name: str) -> Any:
        return stillmap.attach_or_claim(name, holder=_publication.holder_of(self.options.holder, _OPERATION),
                                        device=torch.cuda.current_device(), wait=self.options.wait,
                                        verify=self.options.verify)

    # ---- the first ----

    def _loader(self) -> BaseModelLoader:
        return get_model_loader(dataclasses.replace(self.load_config, load_format=self.options.load_format,
                                                    model_loader_extra_config=dict(self.options.extra)))

    def _publish(self, claim: Any, model: nn.Module) -> None:
        try:
            check_ipc_quant_support(model)
        except UnsupportedQuantForIPCError as e:
            logger.warning("stillmap: the weights are not shared: %s", e)
            return
        tensors: dict[str, Any] = {"attributes": export_model_attrs(model)}
        shared: dict[str, list[torch.Tensor]] = {}
        plain: dict[int, torch.Tensor] = {}  # without the classes and attributes that loading needs
        for name, t in _tensors_of(model):
            alias = plain.setdefault(id(t), t.detach().as_subclass(torch.Tensor))
            tensors[name] = alias
            shared[name] = [alias, t] if name.startswith(_PARAMETER) else [alias]
        del plain, alias, t
        state = _publication.publish_by(
            _OPERATION, claim.name, tensors, _publication.holder_of(self.options.holder, _OPERATION), claim.publish,
            replace=shared, device=torch.cuda.current_device())
        logger.info("stillmap: published %d tensors of %.2f GiB as %s", len(shared),
                    state.memory.shared_bytes / (1 << 30), claim.name)

    # ---- the others ----

    def _attach(self, state: Any, vllm_config: Any, model_config: Any, prefix: str) -> nn.Module:
        device = torch.device("cuda", state.memory.device)
        with set_default_torch_dtype(model_config.dtype):
            with torch.device("meta"):
                model = initialize_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
            check_ipc_quant_support(model)
            _place(model, state)
            for name, value in state["attributes"].items():
                setattr(model, name, value)
            with weights_already_processed():
                process_weights_after_loading(model, model_config, device)
            _check_complete(model, state.memory.name)
        logger.info("stillmap: attached %d tensors of %.2f GiB, published as %s", len(state) - 1,
                    state.memory.shared_bytes / (1 << 30), state.memory.name)
        return model.eval()


def _tensors_of(model: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    """All names of each; buffers also where they are not in the state dict, as the tables of rotary embeddings."""
    for name, p in model.named_parameters(remove_duplicate=False):
        yield _PARAMETER + name, p
    for name, b in model.named_buffers(remove_duplicate=False):
        yield _BUFFER + name, b


def _place(model: nn.Module, state: Any) -> None:
    modules = dict(model.named_modules(remove_duplicate=False))
    made: dict[int, torch.Tensor] = {}  # one object under two names stays one
    for name, t in state.items():
        kind, _, path = name.partition(":")
        owner, _, leaf = path.rpartition(".")
        if kind not in ("parameter", "buffer"):
            continue
        if owner not in modules:
            raise stillmap.InvalidArgumentError(
                f"{_OPERATION}: the publication {state.memory.name!r} has a tensor {path!r}, but the model has no module "
                f"{owner!r}: it was published for another configuration; withdraw it, or give another name")
        module = modules[owner]
        before = module._parameters.pop(leaf, None)
        module._buffers.pop(leaf, None)
        if kind == "buffer":
            module.register_buffer(leaf, made.setdefault(id(t), t.clone()))
        elif id(t) in made:
            module.register_parameter(leaf, made[id(t)])
        else:
            p = made[id(t)] = _parameter_like(before, t)
            module.register_parameter(leaf, p)


def _parameter_like(before: nn.Parameter | None, t: torch.Tensor) -> nn.Parameter:
    """With the class and the attributes of the model's own, such as the function that loads it again, unless it has
    become another one while the publisher loaded it."""
    if before is None or before.shape != t.shape or before.dtype != t.dtype:
        return nn.Parameter(t, requires_grad=False)
    p = torch.Tensor._make_subclass(type(before), t, False)
    p.__dict__.update(vars(before))
    return p


def _check_complete(model: nn.Module, name: str) -> None:
    """What the publisher's model does not have was used up while it was loaded. A tensor that is no parameter and no
    buffer cannot be attached; one without elements (a KV cache, until there is one) need not be."""
    for path, module in model.named_modules():
        for of in (module._parameters, module._buffers):
            for leaf in [leaf for leaf, t in of.items() if t is not None and t.is_meta]:
                logger.warning("stillmap: %s.%s is not in %s, and is left out", path, leaf, name)
                of[leaf] = None
        for leaf, value in vars(module).items():
            if isinstance(value, torch.Tensor) and value.is_meta and value.numel():
                raise stillmap.NotSupportedError(
                    f"{_OPERATION}: {path}.{leaf} of the model is a tensor, but no parameter and no buffer, so it cannot "
                    "be attached: load this model by another load format")
