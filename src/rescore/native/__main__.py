"""`python -m rescore.native`: compile the kernels for this processor, and say which are used."""

import sys

from rescore.core import UsageError
from rescore.native import about
from rescore.native.units import build, usable_units


def main() -> None:
    for unit in usable_units():
        try:
            build(unit)
        except UsageError as error:
            print(f"{unit}: {error}\ntraining works without them, only slower", file=sys.stderr)
    print(f"compiled kernels: {about()}")


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        sys.exit(str(error))
