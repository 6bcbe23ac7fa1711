"""`python -m rooftop`."""

from rooftop.cli import main

main()
