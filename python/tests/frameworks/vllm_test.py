"""stillmap.vllm in vLLM's unmodified wheel: an engine with a model of random weights sleeps and wakes up.

No kernel runs on hostcuda, so nothing is generated; what is checked is memory: how much the device has, the
addresses, and every byte of the weights.
"""

import json
import os
import unittest

from processes import TestCase, needs

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 1000,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "torch_dtype": "bfloat16", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
}

ENGINE = """
import sys, torch
import stillmap, stillmap.vllm
stillmap.vllm.register(); stillmap.vllm.register()  # vLLM calls it too, where the package is installed
from vllm import LLM
from vllm.device_allocator import get_mem_allocator_instance
told = []
stillmap.vllm.on_suspend(lambda ranges: told.append(("suspend", {r.tag for r in ranges})))
stillmap.vllm.on_resume(lambda ranges: told.append(("resume", {r.tag for r in ranges})))
def engine(backend="stillmap", eager=True, **options):
    return LLM(sys.argv[1], load_format="dummy", skip_tokenizer_init=True, enforce_eager=eager, enable_sleep_mode=True,
               kv_cache_memory_bytes=256 << 20, max_model_len=256, max_num_seqs=4, gpu_memory_utilization=0.05,
               sleep_mode_backend=backend, **options)
def worker_of(llm):
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
def free():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0] >> 20
"""


@needs("vllm")
class Sleep(TestCase):
    preamble = ENGINE

    def setUp(self):
        super().setUp()
        self.model = self.path("model")
        os.mkdir(self.model)
        with open(os.path.join(self.model, "config.json"), "w") as f:
            json.dump(CONFIG, f)

    def engine(self, code):
        return self.program(code, self.model, timeout=900, quiet=False, VLLM_NO_USAGE_STATS="1",
                            VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1")

    def test_levels_tags_and_a_file(self):
        self.engine("""
llm = engine(additional_config={"stillmap": {"store": "file", "directory": sys.argv[1]}})
allocator = get_mem_allocator_instance()
assert type(allocator).__module__ == "stillmap.vllm.allocator"
assert {d.tag for d in allocator.pointer_to_data.values()} >= {"weights", "kv_cache"}
weights = dict(worker_of(llm).model_runner.model.named_parameters())
with torch.no_grad():
    for i, p in enumerate(weights.values()):
        p.copy_(torch.full(p.shape, i + 1, dtype=p.dtype))
def right():
    return all((p.cpu() == i + 1).all() for i, p in enumerate(weights.values()))
addresses = [p.data_ptr() for p in weights.values()]
awake = free()
llm.sleep(1)
assert free() >= awake + 256
llm.wake_up(tags=["weights"])
assert right() and free() > awake + 200, "the KV cache still sleeps"
llm.wake_up()
assert right() and addresses == [p.data_ptr() for p in weights.values()]
assert told[0] == ("suspend", {"weights", "kv_cache", "runtime"}) or told[0][0] == "suspend"
assert told[1][0] == "resume" and "kv_cache" not in told[1][1] and told[2] == ("resume", {"kv_cache"})

# A wake-up without memory can be called again; nothing is lost.
llm.sleep(1)
hoard = torch.empty(free() - 100 << 20, dtype=torch.uint8, device="cuda")
try:
    llm.wake_up()
    raise AssertionError("there is no memory")
except Exception as e:
    assert "memory" in str(e), e
del hoard
llm.wake_up()
assert right()

# A callback that fails: nothing sleeps.
def fail(ranges):
    raise RuntimeError("the card is busy")
with stillmap.vllm.on_suspend(fail):
    try:
        llm.sleep(1)
        raise AssertionError("it sleeps")
    except Exception as e:
        assert "the card is busy" in str(e), e
assert right() and not allocator._asleep

before = free()
llm.sleep(2)
assert free() > before + 200
llm.wake_up()
assert addresses == [p.data_ptr() for p in weights.values()]
""")

    # Regression: what was freed in a tag stayed with its pool, and was kept and copied by a sleep.
    def test_what_was_freed_is_the_devices(self):
        self.program("""
import stillmap.vllm, torch
from stillmap.vllm.allocator import StillmapAllocator
MiB = 1 << 20
allocator = StillmapAllocator.get_instance()
def held():
    return sum(d.handle[1] for d in allocator.pointer_to_data.values())
def tensor():
    return torch.empty(64 * MiB, dtype=torch.uint8, device="cuda")
for tag in ("weights", None):
    before = held()
    with allocator.use_memory_pool(tag):
        kept, dropped = tensor(), tensor()
        del dropped
    assert held() == before + 64 * MiB, "given back when the call ends"
    with allocator.use_memory_pool(tag):
        second = tensor()
        with allocator.use_memory_pool("kv_cache"):
            assert allocator.current_tag == "kv_cache"
            cache = tensor()
            with allocator.use_memory_pool(tag):
                third = tensor()
    del kept, third
    with allocator.use_memory_pool(tag):
        pass
    assert held() == before + 128 * MiB, "the second and the cache are left"
    at = second.data_ptr()
    assert allocator.pointer_to_data[at].tag == (tag or "default")
    second.copy_(torch.arange(64 * MiB).to(torch.uint8))
    del cache
    allocator.sleep((tag or "default",))
    assert held() == before + 64 * MiB, "a sleep keeps nothing that is free"
    allocator.wake_up()
    assert second.data_ptr() == at and bool((second.cpu() == torch.arange(64 * MiB).to(torch.uint8)).all())
    del second
    allocator.sleep(()); allocator.wake_up()
    assert held() == before
""", timeout=600, quiet=False)

    # Regression: vLLM captures its graphs into the allocator's cudagraph_pool(), and there was none.
    def test_graphs_sleep_too(self):
        self.engine("""
llm = engine(eager=False, sleep_mode_offload_cudagraph=True,
             compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2]})
allocator = get_mem_allocator_instance()
graphs = {a: d.handle[1] for a, d in allocator.pointer_to_data.items() if d.tag == "cudagraph"}
assert graphs, {d.tag for d in allocator.pointer_to_data.values()}
llm.sleep(2)
assert all(d.is_asleep for d in allocator.pointer_to_data.values())
llm.wake_up()
assert graphs == {a: d.handle[1] for a, d in allocator.pointer_to_data.items() if d.tag == "cudagraph"}
""")

    def test_another_backend_is_left_alone(self):
        self.engine("""
llm = engine("cumem")
assert type(get_mem_allocator_instance()).__module__ == "vllm.device_allocator.cumem"
""")

    def test_wrong_options_are_named(self):
        self.engine("""
try:
    engine(additional_config={"stillmap": {"stroe": "file"}})
    raise AssertionError("accepted")
except ValueError as e:
    assert "'stroe'" in str(e) and "directory, store" in str(e), e
""")


class Options(unittest.TestCase):
    def test_options(self):
        from stillmap.vllm import Options

        self.assertEqual(Options.read(None), Options())
        self.assertEqual(Options.read({"store": "file", "directory": "/d"}), Options("file", "/d"))
        for wrong in ({"store": "disk"}, {"directory": "/d"}, {"more": 1}, 7):
            with self.assertRaises(ValueError):
                Options.read(wrong)

    def test_all_resume_callbacks_are_called(self):
        from stillmap.vllm import Range, callbacks, on_resume

        seen = []

        def fails(_ranges):
            raise OSError("first")

        with on_resume(fails), on_resume(seen.append):
            with self.assertRaisesRegex(OSError, "first"):
                callbacks.resumed([Range("weights", 4096, 1)])
        callbacks.resumed([Range("weights", 4096, 1)])
        self.assertEqual(seen, [[Range("weights", 4096, 1)]])
        with self.assertRaises(TypeError):
            on_resume(None)


if __name__ == "__main__":
    unittest.main()
