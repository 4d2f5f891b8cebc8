"""One copy of memory for several processes."""

import multiprocessing
import os
import tempfile

import stillmap


def read(address):
    # [attach]
    with stillmap.attach("model", holder=address) as memory:  # in any number of processes
        weights, = memory.ranges("weights")
        assert weights.address == 0x220000000000 and memory.metadata == b"step 7"
        memory.make_writable(weights.address, 8)  # this process's own copy of one page
        print("attached:", memory.shared_bytes >> 20, "MiB shared,", memory.private_bytes >> 20, "MiB private")
    # [/attach]


def main():
    address = os.path.join(tempfile.mkdtemp(), "holder")
    # [publish]
    weights = stillmap.GrowableBuffer(64 << 20, tag="weights", hint=0x220000000000, exportable=True)
    weights.copy_from_host(b"contents")
    with stillmap.PublicationHolder(address) as holder:  # in a process that stays; it uses no GPU
        stillmap.publish("model", "weights", holder=address, metadata=b"step 7")
        weights.close()  # the holder has it
        # [/publish]
        reader = multiprocessing.get_context("spawn").Process(target=read, args=(address,))
        reader.start()
        reader.join()
        print("held:", [(p["name"], p["nbytes"] >> 20) for p in holder.publications()])
    assert reader.exitcode == 0


if __name__ == "__main__":
    main()
