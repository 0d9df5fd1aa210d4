"""Claims: which runs start next, on which free seats, and which are cancelled instead."""
