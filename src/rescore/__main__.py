"""python -m rescore"""

from rescore.cli import main

if __name__ == "__main__":
    main()
