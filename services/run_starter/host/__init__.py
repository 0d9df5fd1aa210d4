"""This replica as a host of drivers: its seats, launches, their logs and reports."""
