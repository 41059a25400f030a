"""The command line. Nothing here computes: every command reads what it needs, calls the library and writes."""
