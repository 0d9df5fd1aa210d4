"""Archives of user code, packed environments, and the store of both."""
