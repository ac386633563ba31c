"""Merges of a SentencePiece vocabulary, which has a score for each token instead."""

from collections.abc import Iterable, Mapping


def scored_merges(scores: Mapping[str, float]) -> list[tuple[str, ...]]:
    """Return the merges that lead to tokens, those to the token of the best score first.

    SentencePiece joins the two neighbours whose text together is the token of the best score, the leftmost of several. Each
    way to split a token into two others is a merge here, so that a BPE with ranks does the same.

    Ways to split one token have ranks of their own, the longest left part first, as in Transformers.
    """
    joined = sorted((text for text in scores if len(text) > 1), key=scores.__getitem__, reverse=True)
    return [pair for text in joined for pair in _splits(text, scores)]


def _splits(text: str, known: Mapping[str, float]) -> Iterable[tuple[str, str]]:
    for n in range(len(text) - 1, 0, -1):
        left, right = text[:n], text[n:]
        if left in known and right in known:
            yield left, right
