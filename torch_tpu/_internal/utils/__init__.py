"""Names that other projects import from here."""
