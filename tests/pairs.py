"""All products of all parts are too many to test: every two parts are tested together in at least one of them."""

from collections.abc import Hashable, Iterable
from itertools import combinations


def fewest_with_every_pair(products: Iterable[tuple[Hashable, ...]]) -> list[tuple]:
    """So few of the products that every two choices that stand together in one of them do so in these."""
    pairs = {chosen: set(combinations(enumerate(chosen), 2)) for chosen in products}
    missing, kept = set().union(*pairs.values()), []
    while missing:
        kept.append(max(pairs, key=lambda chosen: len(pairs[chosen] & missing)))
        missing -= pairs[kept[-1]]
    return kept
