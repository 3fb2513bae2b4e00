"""A setting that cannot be used. Clients raise it without loading what reads settings."""


class ConfigError(ValueError):
    """A setting that cannot be used: ``where`` (place), ``problem`` (cause) and ``fix``."""

    def __init__(self, where: str, problem: str, fix: str) -> None:
        super().__init__(f"{where}: {problem}; {fix}" if where else f"{problem}; {fix}")
        self.where = where
        self.problem = problem
        self.fix = fix
