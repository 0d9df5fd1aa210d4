"""The common part of all front ends: publish a request and wait for the reply, follow topics, read state.

Prints nothing.
"""
