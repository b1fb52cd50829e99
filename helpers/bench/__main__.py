"""`python -m helpers.bench TOPIC`."""

import sys

from . import main

main(sys.argv[1] if len(sys.argv) > 1 else "")
