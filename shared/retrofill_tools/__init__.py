"""What people and programs use: the client, the commands, administration, the embedded stack."""
