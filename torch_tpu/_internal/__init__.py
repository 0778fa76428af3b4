"""Names that other projects import from here. There is no logic: each module points at the public one."""
