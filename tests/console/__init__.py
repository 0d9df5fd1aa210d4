"""Tests of the console in a real browser, and the pictures of its pages."""
