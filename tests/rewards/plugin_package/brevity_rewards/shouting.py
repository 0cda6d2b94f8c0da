"""A verifier that the entry point names."""


class Shouting:
    """1.0 where nothing is in lower case."""

    def verify(self, completion, row):
        return float(completion.upper() == completion)
