"""How results are shown: tables and plots."""
