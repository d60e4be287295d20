"""An engine of one step: `python -m tests.faults.one_nan REQUEST_ID`."""

import sys

import torch

from nanwatch import NanProbe

if __name__ == "__main__":
    with NanProbe() as probe:
        print(probe.observe(torch.full((1, 32), float("nan")), sys.argv[1:]).result(timeout=1))
