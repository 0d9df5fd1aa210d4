"""What a service shows of itself: metrics, health, gauges, and the diagnosis of a failed connection."""
