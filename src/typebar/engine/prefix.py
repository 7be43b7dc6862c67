"""Reuse of computed keys and values between requests: a trie whose node is one full block of 16 tokens.

A node is keyed by its 16 tokens below its parent, so two sequences share exactly their common full blocks, and no node
is ever split. Requests that still run share as well: a block enters the trie as soon as it is full and computed.

    tokens   0 ............... 16·shared ............... computed ........... capacity
    blocks   nodes of the trie  | private blocks of one lease: written by its sequence only
             read only, counted |
"""

import heapq
from collections.abc import Iterable
from itertools import count

from typebar.engine.blocks import BLOCK_TOKENS, BlockPool, int32s


class OutOfBlocks(Exception):
    """No block is free and none can be evicted."""


class Node:
    """A full block of the trie. `users` leases hold it; at 0 it may be evicted once it has no children."""

    __slots__ = ("block", "children", "key", "last_used", "parent", "users")

    def __init__(self, key: bytes, block: int, parent: "Node | None") -> None:
        self.key, self.block, self.parent = key, block, parent
        self.children: dict[bytes, Node] = {}
        self.users = 0
        self.last_used = 0


class Lease:
    """The blocks of one sequence: `table[:num_blocks]` in order, shared nodes first, then private ones.

    Without a root the sequence takes no part in sharing, and all its blocks are private.
    """

    __slots__ = ("nodes", "num_blocks", "root", "table")

    def __init__(self, root: Node | None, max_blocks: int) -> None:
        self.root = root
        self.nodes: list[Node] = []
        self.table = int32s(max_blocks)
        self.num_blocks = 0

    @property
    def num_private(self) -> int:
        return self.num_blocks - len(self.nodes)

    @property
    def tip(self) -> Node | None:
        """The node that the next shared block would hang below."""
        return self.nodes[-1] if self.nodes else self.root

    def private_blocks(self) -> list[int]:
        return self.table[len(self.nodes) : self.num_blocks].tolist()


def block_key(tokens: memoryview, index: int) -> bytes:
    """The key of a sequence's block `index`: its 16 tokens (fewer at the end of `tokens`) as bytes."""
    return tokens[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS].tobytes()


class PrefixCache:
    """The trie over the blocks of a pool, with least recently used eviction of what no request holds."""

    def __init__(self, pool: BlockPool, max_blocks_per_sequence: int) -> None:
        self.pool = pool
        self.max_blocks_per_sequence = max_blocks_per_sequence
        self._roots: dict[bytes, Node] = {}
        self._num_nodes = 0
        self._num_unused = 0
        self._candidates: list[tuple[int, int, Node]] = []  # heap of (last_used, tie, leaf); stale entries are skipped
        self._clock = count(1)

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated: the free ones and those cached for nobody in particular."""
        return self.pool.num_free + self._num_unused

    @property
    def num_cached(self) -> int:
        """Blocks in the trie, held or not."""
        return self._num_nodes

    def open(self, salt: str | None = None, share: bool = True) -> Lease:
        """An empty lease. Sequences share blocks only under the same salt."""
        root = None
        if share:
            key = b"" if salt is None else b"salt:" + salt.encode("utf-8", "surrogatepass")
            root = self._roots.setdefault(key, Node(key, -1, None))
            root.users += 1
        return Lease(root, self.max_blocks_per_sequence)

    def extend(self, lease: Lease, tokens: memoryview) -> int:
        """Take the cached blocks that continue a lease without private blocks; returns how many tokens were gained.

        The last of `tokens` is never taken: it has to be computed to give the logits that follow it.
        """
        tip = lease.tip
        if tip is None or lease.num_private:
            return 0
        before = lease.num_blocks
        for index in range(before, (len(tokens) - 1) // BLOCK_TOKENS):
            node = tip.children.get(block_key(tokens, index))
            if node is None:
                break
            self._hold(node)
            lease.nodes.append(node)
            lease.table[index] = node.block
            tip = node
        lease.num_blocks = len(lease.nodes)
        return (lease.num_blocks - before) * BLOCK_TOKENS

    def copy_partial(self, lease: Lease, tokens: memoryview) -> tuple[int, int, int] | None:
        """Reuse the beginning of a cached block where the sequences part inside it.

        Allocates a private block and returns (source, destination, tokens gained), the caller copies source to
        destination before anything else is written. None where nothing is gained, or no block is to be had.
        """
        if lease.tip is None or lease.num_private:
            return None
        start = lease.num_blocks * BLOCK_TOKENS
        wanted = tokens[start : min(start + BLOCK_TOKENS, len(tokens) - 1)].tobytes()
        best, common = None, 0
        for node in lease.tip.children.values():
            if (length := _common_tokens(node.key, wanted)) > common:
                best, common = node, length
        if best is None:
            return None
        self._hold(best)
        try:
            self.allocate(lease, 1)
        except OutOfBlocks:
            return None
        finally:
            self._drop(best, best.last_used)
        return best.block, lease.table[lease.num_blocks - 1], common

    def allocate(self, lease: Lease, blocks: int) -> None:
        """Append private blocks to a lease, evicting where needed. OutOfBlocks, with nothing changed, if that fails."""
        if blocks > self.num_available:
            raise OutOfBlocks
        for _ in range(blocks):
            if not self.pool.num_free:
                self._evict()
            lease.table[lease.num_blocks] = self.pool.allocate()
            lease.num_blocks += 1

    def confirm(self, lease: Lease, tokens: memoryview, computed: int) -> None:
        """Enter the private blocks that lie whole below `computed` into the trie.

        Where another sequence was first with the same tokens, its block takes the place of ours, which is freed: the
        contents are equal bit for bit.
        """
        tip = lease.tip
        if tip is None:
            return
        for index in range(len(lease.nodes), computed // BLOCK_TOKENS):
            key, block = block_key(tokens, index), lease.table[index]
            node = tip.children.get(key)
            if node is None:
                node = tip.children[key] = Node(key, block, tip)
                self._num_nodes += 1
                self._num_unused += 1
            else:
                self.pool.free(block)
                lease.table[index] = node.block
            self._hold(node)
            lease.nodes.append(node)
            tip = node

    def release(self, lease: Lease) -> None:
        """Give up all blocks of a lease: the shared ones stay cached, the private ones are free."""
        for block in lease.private_blocks():
            self.pool.free(block)
        now = next(self._clock)
        for node in reversed(lease.nodes):
            self._drop(node, now)
        lease.nodes.clear()
        lease.num_blocks = 0
        if lease.root is not None:
            lease.root.users -= 1
            self._forget_root(lease.root)
            lease.root = None

    def clear(self) -> int:
        """Evict everything that no lease holds; returns the number of blocks."""
        evicted = self._num_unused
        while self._num_unused:
            self._evict()
        return evicted

    def check(self, leases: Iterable[Lease]) -> None:
        """AssertionError unless free + cached + private is exactly the pool and every count is right.

        `leases` are all that were opened and not released.
        """
        leases = list(leases)
        free = self.pool.free_blocks()
        private = [block for lease in leases for block in lease.private_blocks()]
        nodes = list(self._walk())
        blocks = [*free, *private, *(node.block for node in nodes)]
        assert sorted(blocks) == list(range(self.pool.total)), "free + cached + private is not the pool"
        users = {id(node): 0 for node in nodes}
        for lease in leases:
            tip = lease.root
            for index, node in enumerate(lease.nodes):
                assert node.parent is tip and node.block == lease.table[index], "a lease does not follow the trie"
                users[id(node)] += 1
                tip = node
        assert all(node.users == users[id(node)] for node in nodes), "a node's count of users is wrong"
        assert self._num_nodes == len(nodes) and self._num_unused == sum(not node.users for node in nodes)
        candidates = {id(node) for stamp, _, node in self._candidates if stamp == node.last_used}
        for node in nodes:
            assert node.users or node.children or id(node) in candidates, "a leaf can never be evicted"
            assert node.users >= max((child.users for child in node.children.values()), default=0)

    def _walk(self) -> Iterable[Node]:
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            if node.parent is not None:
                yield node

    def _hold(self, node: Node) -> None:
        if not node.users:
            self._num_unused -= 1
        node.users += 1

    def _drop(self, node: Node, now: int) -> None:
        node.users -= 1
        node.last_used = now
        if not node.users:
            self._num_unused += 1
            if not node.children:
                self._offer(node)

    def _offer(self, leaf: Node) -> None:
        if len(self._candidates) > 2 * self._num_nodes + 64:
            self._candidates = [entry for entry in self._candidates if _is_evictable(entry)]
            heapq.heapify(self._candidates)
        heapq.heappush(self._candidates, (leaf.last_used, next(self._clock), leaf))

    def _evict(self) -> None:
        while True:
            entry = heapq.heappop(self._candidates)
            if _is_evictable(entry):
                break
        node = entry[2]
        parent = node.parent
        assert parent is not None
        del parent.children[node.key]
        self.pool.free(node.block)
        node.block = -1
        self._num_nodes -= 1
        self._num_unused -= 1
        if parent.parent is None:
            self._forget_root(parent)
        elif not parent.users and not parent.children:
            self._offer(parent)

    def _forget_root(self, root: Node) -> None:
        if not root.users and not root.children:
            self._roots.pop(root.key, None)


def _is_evictable(entry: tuple[int, int, Node]) -> bool:
    stamp, _, node = entry
    return node.block >= 0 and not node.users and not node.children and node.last_used == stamp


def _common_tokens(key: bytes, other: bytes) -> int:
    size = 4  # bytes of a token
    length = 0
    for at in range(0, min(len(key), len(other)), size):
        if key[at : at + size] != other[at : at + size]:
            break
        length += 1
    return length
