"""A scheduler's steps over a KV cache whose memory follows the requests."""

import os
import tempfile

import stillmap

MODEL = dict(layers=32, heads=8, dim=128, dtype="float16")  # 128 KiB a token

# [blocks]
with stillmap.KVArena(**MODEL, blocks=32768) as cache:  # the addresses of 64 GiB
    cache.prepare([(65, None)])              # while a step runs: what each sequence of the next one needs
    if short := cache.begin_step():          # bytes: preempt a request, and go on with what there is
        print("short of", short, "bytes")
    prompt = cache.allocate(63)
    answer = cache.allocate(2, after=prompt[-1])
    keys = cache.tensor(0, 0)                # [blocks, 16, heads, dim], for torch.from_dlpack() and others
    cache.release(prompt, keep=True)         # stays in the prefix cache
    cache.release(answer)
# [/blocks]
    assert keys.shape == (32768, 16, 8, 128)
    assert cache.stats()["cached"] == 63
    cache.retain(prompt[:32])  # another request has the same beginning
    cache.evict(31)            # and the memory of the rest is needed
    cache.prepare(0)
    cache.begin_step()
    print("%d blocks, %d MiB" % (cache.stats()["used"], cache.stats()["mapped_bytes"] >> 20))
    cache.release(prompt[:32])

with stillmap.KVSequenceArena(**MODEL, longest=32768, sequences=64) as cache:

    def step():
        cache.prepare()
        assert cache.begin_step() == 0

    prompt = cache.add()
    cache.reserve(prompt, 2000)
    step()
    answers = [cache.fork(prompt, 2000) for _ in range(10)]  # full pages are shared
    for answer in answers:
        cache.reserve(answer, 2010)
    step()
    print("%d MiB of addresses, %d MiB of memory" % (cache.stats()["mapped_bytes"] >> 20,
                                                     cache.stats()["memory_bytes"] >> 20))
    keys = cache.tensor(prompt, 0, 0)  # [longest, heads, dim]: only the first capacity(prompt) tokens have memory
    cache.reserve(prompt, 30000)
    step()
    assert cache.tensor(prompt, 0, 0).address == keys.address and cache.capacity(prompt) >= 30000

with tempfile.TemporaryDirectory() as folder:
    image = os.path.join(folder, "cache.smi")
# [restart]
    with stillmap.KVArena(**MODEL, blocks=32768) as cache:
        cache.prepare(2)
        cache.begin_step()
        table = dict(zip((b"hash of 16 tokens", b"hash of 32 tokens"), cache.allocate(2)))
        cache.save(image, [(block, key) for key, block in table.items()])  # the first are evicted first
    with stillmap.KVArena(**MODEL, blocks=32768) as cache:                 # after a restart
        table = {key: block for block, key in cache.load(image)}           # the blocks are cached
        cache.retain([table[b"hash of 32 tokens"]])                        # a hit
# [/restart]
        assert (cache.stats()["used"], cache.stats()["cached"]) == (1, 1)
