"""The invariants, one file per group.

``oracle.py`` runs them after every commit and after the drain.
"""
