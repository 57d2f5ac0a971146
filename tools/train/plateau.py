"""When training ends: at a loss on held-out text that falls no more."""


class Plateau:
    """Looks at the mean of the last `smooth` values.  One that is less than the least so far by the fraction `least` is
    progress; `patience` evaluations without any are a plateau.

    >>> plateau = Plateau(least=0.1, patience=2, smooth=1)
    >>> [plateau.reached(value) for value in (1.0, 0.8, 0.79, 0.75, 0.7, 0.69, 0.68)]
    [False, False, False, True, False, False, True]

    A plateau is told once, and what comes next is compared with the same least value.  Noise that a mean levels out is
    no progress:

    >>> plateau = Plateau(least=0.1, patience=2, smooth=3)
    >>> [plateau.reached(value) for value in (1.0, 1.2, 0.8, 1.2, 0.8, 1.1)]
    [False, False, False, False, True, False]
    """

    def __init__(self, least, patience, smooth):
        self.least, self.patience, self.smooth = least, patience, smooth
        self.values, self.lowest, self.since = [], None, 0

    def reached(self, value):
        self.values = (self.values + [value])[-self.smooth:]
        if len(self.values) < self.smooth:
            return False
        mean = sum(self.values) / self.smooth
        self.since += 1
        if self.lowest is None or mean < self.lowest * (1 - self.least):
            self.lowest, self.since = mean, 0
        if self.since < self.patience:
            return False
        self.since = 0
        return True


if __name__ == "__main__":
    import doctest
    import sys
    sys.exit(doctest.testmod().failed > 0)
