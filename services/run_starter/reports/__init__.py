"""Reports of drivers, leases and time-outs: decided on, written and announced."""
