"""How often short strings occur in many outputs, any of which may be taken out again.

Knows the outputs' ids; does not know requests, tenants or when an output is evicted. A
path-compressed trie of *windows*: for each position of an output the up to `max_depth` ids from
there on. A window enters when it is complete, or when its output is finished, so every insertion
is one walk down; strings that begin in the last `max_depth` - 1 ids of a growing output wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import itemgetter

_ROOT = 0
_UNKNOWN = -1
_START_BITS = 32
# How many followers are ranked for each that is wanted.
_RANKED_FOLLOWERS = 4
# More followers are ranked once for several questions.
_FEW_FOLLOWERS = 8
_START_MASK = (1 << _START_BITS) - 1
_COUNT = itemgetter(0)


# Where a string ends: a child, and how many ids of its label (of a leaf: of its window) the string
# holds. Valid until the trie changes.
Place = tuple[int, int]


class OutputTrie:
    """Counts of all strings of at most `max_depth` ids in the outputs held.

    Inner nodes are numbers into parallel lists. A string that occurs once is a leaf: a negative
    number that names output and position, so nothing of the output's ids is copied for it.
    """

    __slots__ = (
        "_best",
        "_children",
        "_count",
        "_entered",
        "_free",
        "_label",
        "_max_depth",
        "_next_output",
        "_outputs",
        "_ranked",
    )

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._children: list[dict[int, int]] = [{}]
        # Ids between the parent and the node, and how many windows pass the first of them.
        self._label: list[tuple[int, ...]] = [()]
        self._count = [0]
        # The most frequent child's first id; of equals the one that grew last.
        self._best = [_UNKNOWN]
        self._free: list[int] = []
        # The ids of each output, and how many of its windows are in the trie.
        self._outputs: dict[int, list[int]] = {}
        self._entered: dict[int, int] = {}
        self._next_output = 0
        # Of nodes with many children: count and number of children when they were ranked.
        self._ranked: dict[int, tuple[int, int, list[tuple[int, int]]]] = {}

    def __len__(self) -> int:
        """The number of outputs held."""
        return len(self._outputs)

    @property
    def nodes(self) -> int:
        """The number of inner nodes, the root included."""
        return len(self._children) - len(self._free)

    def add(self) -> int:
        """Begin an output; returns its number."""
        number = self._next_output
        self._next_output += 1
        self._outputs[number] = []
        self._entered[number] = 0
        return number

    def extend(self, number: int, ids: Sequence[int]) -> None:
        """Append ids to an output that is not finished."""
        output = self._outputs[number]
        output.extend(ids)
        self._enter(number, len(output) - self._max_depth + 1)

    def finish(self, number: int) -> None:
        """The output grows no more: its last ids become visible."""
        self._enter(number, len(self._outputs[number]))

    def remove(self, number: int) -> None:
        """Take an output out, as if it had never been there."""
        # Nodes and children of other outputs take the places of those that go.
        self._ranked.clear()
        output = self._outputs[number]
        for start in range(self._entered.pop(number)):
            self._remove(output[start : start + self._max_depth])
        del self._outputs[number]

    def find(self, ids: tuple[int, ...], start: int) -> Place | None:
        """Where ids[start:], 1 to `max_depth` ids, end; None where they do not occur."""
        all_children = self._children
        labels = self._label
        node = _ROOT
        position = start
        end = len(ids)
        while True:
            child = all_children[node].get(ids[position])
            if child is None:
                return None
            if child < 0:
                known = self._window_ids(child, position - start, end - start)
                return (child, end - start) if tuple(known) == ids[position:] else None
            label = labels[child]
            length = len(label)
            below = position + length
            if below >= end:
                held = end - position
                return (child, held) if label[:held] == ids[position:] else None
            if length > 1 and label != ids[position:below]:
                return None
            node = child
            position = below

    def tails(self, ids: tuple[int, ...]) -> list[Place]:
        """Where the tails of `ids` end that occur, at index n the one of n + 1 ids.

        At most one id fewer than there are: the whole is never a tail of itself.
        """
        places: list[Place] = []
        for start in range(len(ids) - 1, 0, -1):
            place = self.find(ids, start)
            if place is None:
                break
            places.append(place)
        return places

    def follow(self, places: Sequence[Place], token: int) -> list[Place]:
        """`tails` of a text once `token` follows, of which `places` are the `tails` now."""
        first = self._children[_ROOT].get(token)
        if first is None:
            return []
        followed = [(first, 1)]
        labels = self._label
        depth = 0
        # A string that fills a window has nothing behind it.
        for child, held in places[: max(0, self._max_depth - 2)]:
            depth += 1
            if child < 0:
                name = -1 - child
                output = self._outputs[name >> _START_BITS]
                position = (name & _START_MASK) + depth
                if position >= len(output) or output[position] != token:
                    break
                followed.append((child, depth + 1))
                continue
            label = labels[child]
            if held < len(label):
                if label[held] != token:
                    break
                followed.append((child, held + 1))
                continue
            below = self._children[child].get(token)
            if below is None:
                break
            followed.append((below, depth + 1 if below < 0 else 1))
        return followed

    def likeliest_followers(self, place: Place, depth: int, most: int) -> list[tuple[int, int]]:
        """(occurrences, id) of the ids behind the string of `depth` ids that ends at `place`.

        The most frequent first. Of very many only those that were seen first are ranked: frequent
        ones are among them; and a ranking is kept until the string's count has changed by an
        eighth, with those that were new since at its end.
        """
        child, held = place
        if child < 0:
            return [(1, token) for token in self._window_ids(child, depth, depth + 1)]
        counts = self._count
        label = self._label[child]
        if held < len(label):
            return [(counts[child], label[held])]
        children = self._children[child]
        if len(children) <= _FEW_FOLLOWERS:
            return self._ranking(children, most)
        count, ranked, followers = self._ranked.get(child, (0, 0, []))
        if 8 * abs(counts[child] - count) > count or len(followers) < min(most, ranked):
            followers = self._ranking(children, most)
            self._ranked[child] = (counts[child], len(children), followers)
        elif ranked < len(children):
            fresh = islice(children, ranked, _RANKED_FOLLOWERS * most)
            followers = followers + [(1, token) for token in fresh]
        return followers[:most]

    def _ranking(self, children: dict[int, int], most: int) -> list[tuple[int, int]]:
        counts = self._count
        repeated: list[tuple[int, int]] = []
        single: list[tuple[int, int]] = []
        for token, below in islice(children.items(), _RANKED_FOLLOWERS * most):
            if below < 0:
                single.append((1, token))
            else:
                repeated.append((counts[below], token))
        if len(repeated) > 1:
            repeated.sort(key=_COUNT, reverse=True)
        return (repeated + single)[:most]

    def occurrences(self, place: Place) -> int:
        """How often the string that ends at `place` occurs."""
        return self._occurrences(place[0])

    def likeliest_path(
        self, place: Place, depth: int, limit: int, min_probability: float, unseen: int
    ) -> tuple[list[int], list[float]]:
        """The most frequent ids behind a string of `depth` ids, and each one's probability.

        At most `limit` ids, while the probability of the whole path, a product of count ratios,
        is at least `min_probability`. `unseen` occurrences of the string, whose next id nobody
        knows yet, are counted on top of those in the trie.
        """
        child, held = place
        counts = self._count
        end = depth + limit
        occurrences = 1 if child < 0 else counts[child]
        probability = occurrences / (occurrences + unseen)
        ids: list[int] = []
        probabilities: list[float] = []
        while probability >= min_probability:
            if child < 0:
                ids += self._window_ids(child, depth, end)
                probabilities += [probability] * (len(ids) - len(probabilities))
                break
            taken = self._label[child][held : held + end - depth]
            ids += taken
            depth += len(taken)
            probabilities += [probability] * len(taken)
            children = self._children[child]
            if depth == end or not children:
                break
            token = self._best[child]
            if token == _UNKNOWN:
                token = self._best[child] = self._most_frequent(children)
            next_child = children[token]
            grown = 1 if next_child < 0 else counts[next_child]
            probability *= grown / counts[child]
            child = next_child
            held = 0
        return ids, probabilities

    def _enter(self, number: int, end: int) -> None:
        ids = self._outputs[number]
        for start in range(self._entered[number], end):
            window = tuple(ids[start : start + self._max_depth])
            self._insert(window, -1 - (number << _START_BITS | start))
            self._entered[number] = start + 1

    def _window_ids(self, leaf: int, start: int, end: int) -> list[int]:
        """The ids from `start` to `end` of a leaf's window, which may be shorter."""
        name = -1 - leaf
        first = name & _START_MASK
        return self._outputs[name >> _START_BITS][first + start : first + min(end, self._max_depth)]

    def _insert(self, window: tuple[int, ...], leaf: int) -> None:
        node = _ROOT
        depth = 0
        end = len(window)
        while depth < end:
            token = window[depth]
            children = self._children[node]
            child = children.get(token)
            if child is None:
                children[token] = leaf
                self._grew(node, token, 1)
                return
            if child < 0:
                other = tuple(self._window_ids(child, 0, self._max_depth))
                fork = _fork(window, other, depth)
                middle = self._new_node(window[depth:fork], 2)
                if fork < len(other):
                    self._children[middle][other[fork]] = child
            else:
                label = self._label[child]
                below = depth + len(label)
                if window[depth:below] == label:
                    count = self._count[child] = self._count[child] + 1
                    self._grew(node, token, count)
                    node = child
                    depth = below
                    continue
                fork = _fork(window, window[:depth] + label, depth)
                middle = self._new_node(window[depth:fork], self._count[child] + 1)
                self._label[child] = label[fork - depth :]
                self._children[middle][label[fork - depth]] = child
            if fork < end:
                self._children[middle][window[fork]] = leaf
            children[token] = middle
            self._grew(node, token, self._count[middle])
            return

    def _remove(self, ids: Sequence[int]) -> None:
        path = []
        node = _ROOT
        depth = 0
        while depth < len(ids):
            token = ids[depth]
            child = self._children[node][token]
            if self._best[node] == token:
                self._best[node] = _UNKNOWN
            if child < 0:
                del self._children[node][token]
                break
            path.append((node, token, child))
            depth += len(self._label[child])
            self._count[child] -= 1
            node = child
        for parent, token, child in reversed(path):
            if self._count[child] == 0:
                del self._children[parent][token]
                self._drop_node(child)
            elif len(self._children[child]) == 1:
                self._merge(parent, token, child)

    def _merge(self, parent: int, token: int, node: int) -> None:
        """Undo a fork: where all windows through `node` go on to one child, it is that child."""
        ((_, child),) = self._children[node].items()
        if self._occurrences(child) != self._count[node]:
            return
        if child >= 0:
            self._label[child] = self._label[node] + self._label[child]
        self._children[parent][token] = child
        self._drop_node(node)

    def _grew(self, node: int, token: int, count: int) -> None:
        best = self._best[node]
        if node == _ROOT or best in (token, _UNKNOWN):
            return
        if count >= self._occurrences(self._children[node][best]):
            self._best[node] = token

    def _most_frequent(self, children: dict[int, int]) -> int:
        return max(reversed(children), key=lambda token: self._occurrences(children[token]))

    def _occurrences(self, child: int) -> int:
        return 1 if child < 0 else self._count[child]

    def _new_node(self, label: tuple[int, ...], count: int) -> int:
        if not self._free:
            self._children.append({})
            self._label.append(label)
            self._count.append(count)
            self._best.append(_UNKNOWN)
            return len(self._label) - 1
        node = self._free.pop()
        self._label[node] = label
        self._count[node] = count
        return node

    def _drop_node(self, node: int) -> None:
        self._children[node] = {}
        self._label[node] = ()
        self._best[node] = _UNKNOWN
        self._free.append(node)


def _fork(a: tuple[int, ...], b: tuple[int, ...], depth: int) -> int:
    """The first index behind `depth` where two windows, equal up to there, differ or end."""
    end = min(len(a), len(b))
    fork = depth + 1
    while fork < end and a[fork] == b[fork]:
        fork += 1
    return fork
