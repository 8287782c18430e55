"""`python -m rescore.native`: compile the kernels, and say whether they are used."""

import sys

from rescore.core import UsageError
from rescore.native import NEEDED, build, processor_flags, state

if __name__ == "__main__":
    if processor_flags() >= NEEDED:
        try:
            build()
        except UsageError as error:
            sys.exit(f"{error}\ntraining works without them, only slower")
    print(f"compiled kernels: {state()}")
