"""Scripts that ``pilot check`` runs."""
