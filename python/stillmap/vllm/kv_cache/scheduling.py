"""The scheduler of an engine whose cache grows: vLLM's own, with an arena's blocks."""

from __future__ import annotations

import itertools
from typing import Any


def growing(base: type, cache: Any) -> type:
    """A class of scheduler for one engine. vLLM takes one from its configuration (`scheduler_cls`)."""

    class GrowingScheduler(base):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            manager = self.kv_cache_manager
            self._stillmap_blocks = cache.connect(manager.block_pool, manager.coordinator)

        def schedule(self, *arguments: Any, **named: Any) -> Any:
            self._stillmap_blocks.begin_step()
            scheduled = super().schedule(*arguments, **named)
            # Here and not when a step's output comes: every earlier step has been queued by now, also what vLLM defers
            # until it has an output, and none of them has a block that is free and that the new one uses.
            self._stillmap_blocks.prepare(self._stillmap_expected())
            return scheduled

        def _stillmap_expected(self) -> int:
            """What the next step needs: of the requests that run, and of waiting ones as far as its tokens go."""
            managers = self.kv_cache_manager.coordinator.single_type_managers
            budget, blocks = self.max_num_scheduled_tokens, 0
            for request in itertools.chain(self.running, self.waiting):
                tokens = max(1, min(budget, request.num_tokens - request.num_computed_tokens))
                budget -= tokens
                if budget < 0:
                    break
                for m in managers:
                    have = len(m.req_to_blocks.get(request.request_id, ()))
                    blocks += max(0, -(-(request.num_computed_tokens + tokens) // m.block_size) - have)
            return blocks

    GrowingScheduler.__name__ = GrowingScheduler.__qualname__ = "Growing" + base.__name__
    return GrowingScheduler
