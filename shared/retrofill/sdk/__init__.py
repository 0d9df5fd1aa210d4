"""What pipelines are checked by and made of: names, limits, durations, scripts."""
