"""Ships user code to drivers, as archives named by their content hash in a shared store."""
