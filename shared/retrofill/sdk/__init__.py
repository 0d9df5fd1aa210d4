"""Names, limits, durations and scripts, of which pipelines are made and by which they are checked."""
