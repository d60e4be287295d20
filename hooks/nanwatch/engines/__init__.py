"""Adapters: the only files that know an engine. Each is imported only by who uses that engine."""
