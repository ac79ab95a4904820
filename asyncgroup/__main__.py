"""`python -m asyncgroup`: the same as the command `asyncgroup`."""

import sys

from asyncgroup.cli import main

sys.exit(main())
