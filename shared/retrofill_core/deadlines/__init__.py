"""Arming deadlines and requesting callbacks: their rows, and the hints to who handles them."""
