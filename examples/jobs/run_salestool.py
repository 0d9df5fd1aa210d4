"""Starts the command line of a package."""

from salestool.cli import main

main()
