raise RuntimeError("broken\non import")
