"""NANWATCH_ON_NAN=abort in vLLM: the corrupted request ends, the others run on, its KV blocks are cleaned.

A finding travels with the output of the step that made it, the answer with the next step:

    worker           worker_side.py     counts -> Finding, beside the step's own output
    EngineCore       scheduler_side.py  Finding -> the request ends before its token is looked at,
                                        quarantine.py takes its blocks -> Order, beside the next step
    worker           worker_side.py     Order -> kv_cache.py looks for NaN in these blocks, zeroes them,
                                        and only then the step runs
    API server       client_side.py     says NaN, and that the request may be sent again

    verified.py      where this was seen to work; everywhere else the engine refuses to start
    arming.py        puts the three sides in place, in whichever process vLLM calls the plug-in
    messages.py      what travels

Nothing is done in a clean step but to look whether there is something to do.
"""
