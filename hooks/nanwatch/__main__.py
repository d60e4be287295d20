"""`python -m nanwatch` is `nanwatch`."""

import sys

from .cli import main

sys.exit(main())
