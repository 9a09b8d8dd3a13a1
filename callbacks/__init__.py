"""Lightning callbacks, one per file; each says "Observes" or "Changes training"."""

__all__: list[str] = []
