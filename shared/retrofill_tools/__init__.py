"""Tools for people and programs: the client, the commands, administration, the embedded stack."""
