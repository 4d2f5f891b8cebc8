"""`--load-format stillmap` in vLLM's unmodified wheel: one engine loads a checkpoint, others attach its weights.

No kernel runs on hostcuda, so nothing is generated; what is compared is every byte of the weights, their addresses and
the memory of the device.
"""

import json
import os
import unittest

from processes import TestCase, needs
from vllm_test import CONFIG

import stillmap

DIGEST = """
import hashlib, json, sys, torch
def digest(t):
    return hashlib.sha256(t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
"""
# A checkpoint as Hugging Face has it, with weights that no loader would leave there by chance, and what vLLM makes of
# them: some are fused.
CHECKPOINT = DIGEST + """
from safetensors.torch import save_file
with open(sys.argv[1] + "/config.json") as f:
    c = json.load(f)
h, i, v = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
shapes = {"model.embed_tokens.weight": (v, h), "model.norm.weight": (h,), "lm_head.weight": (v, h)}
for n in range(c["num_hidden_layers"]):
    at = f"model.layers.{n}."
    shapes.update({at + f"self_attn.{p}_proj.weight": (h, h) for p in "qkvo"})
    shapes.update({at + "mlp.gate_proj.weight": (i, h), at + "mlp.up_proj.weight": (i, h),
                   at + "mlp.down_proj.weight": (h, i), at + "input_layernorm.weight": (h,),
                   at + "post_attention_layernorm.weight": (h,)})
torch.manual_seed(5)
made = {n: torch.randn(s).to(torch.bfloat16) for n, s in shapes.items()}
save_file(made, sys.argv[1] + "/model.safetensors")
for n in range(c["num_hidden_layers"]):
    at = f"model.layers.{n}."
    for fused, parts in (("self_attn.qkv", ["self_attn.q", "self_attn.k", "self_attn.v"]),
                         ("mlp.gate_up", ["mlp.gate", "mlp.up"])):
        made[f"{at}{fused}_proj.weight"] = torch.cat([made.pop(f"{at}{part}_proj.weight") for part in parts])
print(json.dumps({n: digest(t) for n, t in made.items()}))
"""

ENGINE = DIGEST + """
import os, time
import stillmap, stillmap.torch, stillmap.vllm
stillmap.vllm.register(); stillmap.vllm.register()
from vllm import LLM
from vllm.model_executor.model_loader import default_loader
loads = []
original = default_loader.DefaultModelLoader.load_weights
def load_weights(self, *arguments, **named):
    loads.append(1)
    return original(self, *arguments, **named)
default_loader.DefaultModelLoader.load_weights = load_weights
from stillmap.vllm import loader
load_model = loader.StillmapLoader.load_model
def timed(self, *arguments, **named):
    began = time.monotonic()
    model = load_model(self, *arguments, **named)
    print("note: the model was there after %.2f s" % (time.monotonic() - began), flush=True)
    return model
loader.StillmapLoader.load_model = timed
def engine(**options):
    return LLM(sys.argv[1], load_format="stillmap", model_loader_extra_config=options, skip_tokenizer_init=True,
               enforce_eager=True, kv_cache_memory_bytes=64 << 20, max_model_len=256, max_num_seqs=4,
               gpu_memory_utilization=0.05)
def worker_of(llm):
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
def model_of(llm):
    return worker_of(llm).model_runner.model
def tell(llm, **more):
    model = model_of(llm)
    shared = {n: (p.data_ptr(), digest(p)) for n, p in model.named_parameters(remove_duplicate=False)}
    buffers = {n: digest(b) for n, b in model.named_buffers(remove_duplicate=False)}
    torch.cuda.synchronize()
    print("told:" + json.dumps({"parameters": shared, "buffers": buffers, "loads": len(loads),
                                "free": torch.cuda.mem_get_info()[0], **more}), flush=True)
"""


@needs("vllm")
class LoadFormat(TestCase):
    preamble = ENGINE

    def setUp(self):
        super().setUp()
        self.model = self.path("model")
        os.mkdir(self.model)
        with open(os.path.join(self.model, "config.json"), "w") as f:
            json.dump({**CONFIG, "vocab_size": 1024}, f)  # which vLLM does not pad
        self.expected = json.loads(self.run_python(CHECKPOINT, self.model, quiet=False, timeout=300))
        self.holder = stillmap.PublicationHolder(self.path("holder"))
        self.addCleanup(self.holder.close)

    def engine(self, code):
        said = self.program(code, self.model, timeout=900, quiet=False, VLLM_NO_USAGE_STATS="1",
                            VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1",
                            STILLMAP_HOLDER=self.holder.address, HOSTCUDA=self.one_machine())
        print(*(line for line in said.splitlines() if line.startswith("note:")), sep="\n")
        told = [line[5:] for line in said.splitlines() if line.startswith("told:")]
        return json.loads(told[-1]) if told else None

    def test_one_engine_loads_and_others_attach(self):
        first = self.engine('tell(engine(verify=True))')
        self.assertEqual((first["loads"], len(self.holder.publications())), (1, 1))
        name = self.holder.publications()[0]["name"]
        self.assertTrue(name.startswith("vllm.model."), name)
        second = self.engine("""
llm = engine(verify=True)
private = [n for n, p in model_of(llm).named_parameters() if stillmap.torch._publication.memory_of(p) is None]
assert not private, private
tell(llm)

# Weights that are loaded again are this process's own.
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader import get_model_loader
worker = worker_of(llm)
before = {n: digest(p) for n, p in model_of(llm).named_parameters()}
with set_current_vllm_config(worker.vllm_config):
    get_model_loader(worker.load_config).load_weights(model_of(llm), worker.model_config)
assert before == {n: digest(p) for n, p in model_of(llm).named_parameters()} and len(loads) == 1
memory = stillmap.torch._publication.memory_of(next(model_of(llm).parameters()))
assert memory.private_bytes > 0
""")
        self.assertEqual(second["loads"], 0)
        self.assertEqual(second["parameters"], first["parameters"], "bytes and addresses")
        self.assertEqual({n: d for n, (_, d) in second["parameters"].items()}, self.expected)
        self.assertEqual(second["buffers"], first["buffers"])
        self.assertEqual(len(self.holder.publications()), 1)

    def test_wrong_options_are_named(self):
        self.engine("""
for options, text in (({"holdr": "x"}, "'holdr'"), ({"load_format": "stillmap"}, "load_format"), ({"extra": 3}, "extra")):
    try:
        engine(**options)
        raise AssertionError("accepted")
    except ValueError as e:
        assert text in str(e), e
""")


if __name__ == "__main__":
    unittest.main()
