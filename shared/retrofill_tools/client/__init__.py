"""What every front end needs: publish a request and wait for the reply, follow topics, read state.

Prints nothing.
"""
