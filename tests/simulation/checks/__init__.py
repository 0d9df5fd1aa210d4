"""What must hold, one file for each part of it; ``oracle.py`` asks them after every commit and in the end."""
