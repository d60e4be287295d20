"""`python -m nanwatch_sidecar` is `nanwatch sidecar`."""

import sys

from .server import main

sys.exit(main(sys.argv[1:]))
