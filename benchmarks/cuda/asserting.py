"""An engine whose sampler trips a device assert after a NaN: `python -m benchmarks.cuda.asserting DEVICE`."""

import os
import sys

import torch

from nanwatch import NanProbe


def main(device: str) -> None:
    """Observe a NaN, sample from it, say what became of the device, and die as engines do."""
    logits = torch.zeros(2, 1000, device=device)
    probe = NanProbe(device=device)
    probe.observe(logits, ["good", "other"])
    logits[1] = float("nan")
    probe.observe(logits, ["good", "bad"])
    try:
        torch.multinomial(logits.softmax(-1), 1)
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        print("no assert")
    except RuntimeError as error:
        print(str(error).splitlines()[0])
    probe.flush()  # the watcher has read host memory; it asked the broken device nothing
    sys.stdout.flush()
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
