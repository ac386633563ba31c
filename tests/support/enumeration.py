"""All outcomes of a verification with their probabilities: random numbers become branches."""

from dflash.decode.verifiers.path import DraftPath


class Branches:
    """Makes the choices of `given`, then the first possible one; remembers the others."""

    def __init__(self, given=()):
        self.given, self.made, self.others, self.probability = given, [], [], 1.0

    def choose(self, weights):
        total, possible = sum(weights), [i for i, weight in enumerate(weights) if weight > 0]
        if len(self.made) < len(self.given):
            taken = self.given[len(self.made)]
        else:
            taken = possible[0]
            self.others += [(*self.made, other) for other in possible[1:]]
        self.made.append(taken)
        self.probability *= weights[taken] / total
        return taken


def outcomes(run):
    """Yield ``run(branches)`` and its probability for every branch."""
    waiting = [()]
    while waiting:
        branches = Branches(waiting.pop())
        yield run(branches), branches.probability
        waiting += branches.others


class Coin:
    """A uniform number that is compared once; scaled by what it is multiplied with."""

    def __init__(self, branches, scale=1.0):
        self.branches, self.scale = branches, scale

    def __mul__(self, other):
        return Coin(self.branches, self.scale * other)

    def __lt__(self, other):
        below = min(1.0, other / self.scale)
        return self.branches.choose([below, 1 - below]) == 0

    def __ge__(self, other):
        return not self < other


def enumerated(branches):
    """A class to put in place of `DraftPath`."""

    class Enumerated(DraftPath):
        def uniform(self):
            return Coin(branches)

        def sample(self, weights, depth):
            assert depth == 0 or depth < len(self._draft)
            return branches.choose(weights.tolist()) if weights.any() else None

    return Enumerated


def branching(session, branches):
    """Let the target's own tokens branch, too."""
    sampler = session.sampler
    sampler.request = lambda *given, **named: None
    sampler.sample = lambda *given: branches.choose(sampler.distribution(*given).tolist())
    return session
