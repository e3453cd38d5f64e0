"""`python -m jaxpsd` is the command line."""

import sys

from jaxpsd.cli import main

sys.exit(main())
