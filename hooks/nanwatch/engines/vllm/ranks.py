"""Which rank of which engine a worker is, and whether its tokens reach the client.

All tensor and pipeline ranks of an engine are one replica, told apart by the label `rank`. Each
data-parallel rank serves requests of its own: it is an engine, and its index, as vLLM's own metrics
name it, is the label `engine`. Logits are made on the last pipeline stage only, the same ones on
each of its tensor ranks; the first of these sends its tokens to the client, so it counts.

life: vLLM's instance id. It is part of the configuration that every worker of an engine is handed,
hence the same on all of them, and new with each start. Only under torchrun each rank makes a
configuration of its own: there torchrun's run id is taken (identity.life).
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple


class Place(NamedTuple):
    """Where a worker stands."""

    rank: str
    engine: str
    life: str | None  # None: what the probe takes by itself
    has_logits: bool  # on the last pipeline stage
    sends_output: bool  # ... and the first rank there: vLLM asks for the output of no other
    owns_requests: bool  # counts: that one alone, but for batch-sharded sampling


def place_of(worker: Any, vllm_config: Any, environment: Mapping[str, str] = os.environ) -> Place:
    """Find out where this worker stands, once vLLM's groups are there."""
    from vllm.distributed import parallel_state as groups

    last_stage = bool(groups.get_pp_group().is_last_rank)
    first_there = groups.get_tp_group().rank_in_group == 0 and _rank_in_prefill_context(groups) == 0
    return Place(
        rank=str(worker.rank),
        engine=engine_index(vllm_config.parallel_config),
        life=None if "TORCHELASTIC_RUN_ID" in environment else vllm_config.instance_id or None,
        has_logits=last_stage,
        sends_output=last_stage and first_there,
        owns_requests=last_stage and first_there,
    )


def engine_index(parallel_config: Any) -> str:
    """Return the data-parallel index; `data_parallel_rank` is 0 on all of them for dense models."""
    index = getattr(parallel_config, "data_parallel_index", None)
    return str(parallel_config.data_parallel_rank if index is None else index)


def _rank_in_prefill_context(groups: Any) -> int:
    """Return the rank among those that share a prompt; older versions have no such group."""
    group = getattr(groups, "get_pcp_group", None)
    return int(group().rank_in_group) if group is not None else 0
