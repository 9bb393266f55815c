"""`python -m windlass` is the command `windlass`."""

from _windlass_command import main

if __name__ == "__main__":
    main()
