"""Eager execution: views over functional storages, dispatch to cached executables, modes, transfers."""
