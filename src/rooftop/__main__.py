"""`python -m rooftop`."""

from rooftop.cli import main

if __name__ == "__main__":  # workers of `rooftop web` import the main module under another name
    main()
