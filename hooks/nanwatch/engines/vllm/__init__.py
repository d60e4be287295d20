"""vLLM: a plug-in that installs itself in every worker, once the environment asks for it.

    registration.py   what vLLM calls in each of its processes: arms the workers, nothing more
    worker.py         a worker has its device: whose rank is it, what kind of runner, install
    seams.py          what an adapter needs of a vLLM, looked at before anything is touched
    v1.py  v2.py      the two model runners: where their raw logits are, and whose rows
    pooled.py         pooling models: one row for each pooled output
    sharded.py        batch-sharded sampling: each rank's own requests
    rows.py           row arithmetic, pure
    output.py         a step from its logits to its output: observe, finish, and where it raises
    containment/      NANWATCH_ON_NAN=abort: the corrupted request ends, its KV blocks are cleaned
    ranks.py          which rank, which engine, which life
    client_ids.py     vLLM's internal request ids, and the client's
    hidden_states.py  which rows of a step prompt logits were made of
    unknown.py        the one warning about a vLLM that is not known
    replaced.py       a method of one object, replaced

Nothing here is imported by anybody but vLLM's plug-in loader and these files.
"""
