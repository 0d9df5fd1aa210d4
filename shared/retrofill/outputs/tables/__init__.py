"""Output in tables: staged in tables of its own, published by one commit for a group of intervals, and undone.

Spark runs a command, such as ``DROP TABLE``, when ``sql`` is called: to collect it, too, is one more request to a Connect server.
"""
