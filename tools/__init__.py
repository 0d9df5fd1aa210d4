"""Generators: JSON Schemas, AsyncAPI and the reference pages, from the code."""
