"""The paper: its experiments, what it claims of them, and what we find."""
