"""What the hook costs, measured: each module prints a table of figures, each beside its goal."""
