"""`python -m rescore.native`: compile the kernels, and say whether they are used."""

import sys

from rescore.core import UsageError
from rescore.native import about, build, chosen_unit

if __name__ == "__main__":
    if unit := chosen_unit():
        try:
            build(unit)
        except UsageError as error:
            sys.exit(f"{error}\ntraining works without them, only slower")
    print(f"compiled kernels: {about()}")
