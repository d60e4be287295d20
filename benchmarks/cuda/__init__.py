"""The parts of `python -m benchmarks.gpu`: what is right, how long it takes, and what never happens.

card.py       the GPU: graphs, device time, its name
correct.py    (a) every number against eager torch
speed.py      (b) device time beside eager, torch.compile, a kernel of one program a row, and a plain read
rivals.py         those
host.py       (c) what `observe` takes of the host
promises.py   (d) no wait  (e) captures  (f) nothing is read before it landed  (g) a device assert
asserting.py  (g)'s engine, a process of its own
"""
