"""Runs vLLM's own tests of its KV cache manager and its schedulers without Stillmap and with it, and prints a table.

    vllm_own_kv_tests.py vllm-0.33.0.tar.gz      archive and environment as for vllm_own_tests.py, with memory=8G

With Stillmap, each block pool that a test makes has an arena's free blocks in place of vLLM's list, as an engine with
`kv_cache: grow` has: with 64 blocks in a page group, and with one. Pools of models that the option refuses stay as they are,
and tests without another pool are not counted. It exits with 1 where a test fails with Stillmap only that is not expected to.
docs/vllm.md says what came of it.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

from vllm_own_tests import unpack

CORE = "tests/v1/core/"
TESTS = [CORE + name for name in (
    "test_prefix_caching.py", "test_single_type_kv_cache_manager.py", "test_kv_cache_utils.py",
    "prefix_cache/test_partial_prefix_cache_hits.py", "prefix_cache/test_partial_prefix_cache_primitives.py",
    "test_prefix_replay.py", "test_deferred_block_free.py", "test_scheduler.py", "test_async_scheduler.py")]
HELPERS = [CORE + "utils.py", "tests/v1/kv_connector/unit/utils.py"]

PAGE = 2 << 20
LARGEST_POOL = 1000  # blocks: one that has more, and fills it, would need more memory than there is with a page for each

# Why these fail with Stillmap.
NUMBERS = "it expects the numbers of blocks that vLLM's list gives out"
EXPECTED = {
    "test_prefill": "it looks at the order of vLLM's list", "test_prefill_plp": "it looks at the order of vLLM's list",
    "test_evict": "it looks at the order of vLLM's list",
    "test_decode": NUMBERS, "test_mm_prefix_caching": NUMBERS, "test_cache_key_salting": NUMBERS,
    "test_reset_prefix_cache": NUMBERS,
    "test_evictable_cached_blocks_not_double_allocated": "it uses a block as cached that nobody has filled",
}
# And these where a page group has several blocks.
EXPECTED_OF_GROUPS = {
    "test_kv_connector_handles_preemption": "page groups are evicted as a whole (and connectors are refused)",
}

# Models that tests name: a folder with a configuration does, where the network has none.
OPT = {"architectures": ["OPTForCausalLM"], "model_type": "opt", "hidden_size": 768, "num_attention_heads": 12, "ffn_dim": 3072,
       "num_hidden_layers": 12, "word_embed_proj_dim": 768, "vocab_size": 50272, "max_position_embeddings": 2048,
       "torch_dtype": "float16"}
QWEN = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 28, "vocab_size": 151936,
        "max_position_embeddings": 40960, "torch_dtype": "bfloat16"}
MODELS = {"facebook/opt-125m": OPT, "Qwen/Qwen3-0.6B": QWEN}


# ---- as a plugin of pytest ----

BLOCKS_IN_PAGE = int(os.environ.get("BLOCKS_IN_PAGE", 0))
_item = None


def pytest_runtest_setup(item):
    global _item
    _item = item


def pytest_configure(config):
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

    make_pool, make_coordinator = BlockPool.__init__, KVCacheCoordinator.__init__

    def made(pool, coordinator):
        _item.user_properties.append(("pool", 1))
        if BLOCKS_IN_PAGE:
            connect(pool, coordinator)

    def pool_init(self, *arguments, **named):
        make_pool(self, *arguments, **named)
        if sys._getframe(1).f_globals["__name__"].startswith("tests."):
            made(self, NoCoordinator())

    def coordinator_init(self, *arguments, **named):
        make_coordinator(self, *arguments, **named)
        groups = self.kv_cache_config.kv_cache_groups
        if all(type(g.kv_cache_spec) in (FullAttentionSpec, MLAAttentionSpec) and not g.host_resident for g in groups):
            made(self.block_pool, self)

    BlockPool.__init__, KVCacheCoordinator.__init__ = pool_init, coordinator_init


class NoCoordinator:
    get_num_blocks_to_allocate = allocate_new_blocks = None


def connect(pool, coordinator):
    import torch
    from stillmap.vllm.kv_cache.engine import GrowingCache
    from stillmap.vllm.kv_cache.memory import CacheMemory
    from stillmap.vllm.kv_cache.placement import Placement
    from stillmap.vllm.options import CacheOptions

    nbytes = PAGE // (BLOCKS_IN_PAGE if pool.num_gpu_blocks <= LARGEST_POOL else 64)
    cache = GrowingCache.__new__(GrowingCache)  # without the checks of an engine's configuration
    cache.options = CacheOptions("grow", pool.num_gpu_blocks * nbytes, 0)
    cache.memory = CacheMemory(Placement(pool.num_gpu_blocks, 1, nbytes, True), 0, torch.device("cuda", 0))
    cache.connect(pool, coordinator)


# ---- the program ----


def run(folder, blocks_in_page=0):
    """What came of each test that made a pool."""
    report = pathlib.Path(folder, "report.xml")
    report.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", pathlib.Path(__file__).stem,
         f"--junitxml={report}", *TESTS],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.abspath(__file__)), "VLLM_NO_USAGE_STATS": "1",
             "HF_HUB_OFFLINE": "1", "BLOCKS_IN_PAGE": str(blocks_in_page)})
    if not report.exists():
        sys.exit(done.stdout)
    outcomes = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        if case.find("properties/property[@name='pool']") is not None:
            bad = [case.find(kind) for kind in ("failure", "error", "skipped")]
            bad = [b for b in bad if b is not None]
            outcomes[case.get("classname") + "::" + case.get("name")] = bad[0].get("message") if bad else None
    return outcomes


def main():
    with tempfile.TemporaryDirectory() as folder:
        unpack(sys.argv[1], TESTS + HELPERS, folder)
        for name, config in MODELS.items():
            model = pathlib.Path(folder, name)
            model.mkdir(parents=True)
            (model / "config.json").write_text(json.dumps(config))
        theirs = run(folder)
        print("| free blocks | tests | passed |")
        print(f"| vLLM's own | {len(theirs)} | {list(theirs.values()).count(None)} |", flush=True)
        worse = []
        for blocks_in_page in (64, 1):
            ours = run(folder, blocks_in_page)
            print(f"| stillmap, {blocks_in_page} in a page group | {len(ours)} | {list(ours.values()).count(None)} |", flush=True)
            worse += [(test, blocks_in_page, message) for test, message in ours.items()
                      if message is not None and theirs.get(test, 0) is None]
    status = 0
    for test, blocks_in_page, message in worse:
        known = EXPECTED if blocks_in_page == 1 else EXPECTED | EXPECTED_OF_GROUPS
        why = known.get(test.split("::")[1].split("[")[0])
        print(f"only with {blocks_in_page} in a page group: {test}: {why or message}")
        status |= why is None
    return status


if __name__ == "__main__":
    sys.exit(main())
