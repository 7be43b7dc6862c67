"""The blocks of the KV cache that nobody uses, and numbers as the native core takes them."""

BLOCK_TOKENS = 16


def int32s(count: int) -> memoryview:
    """Zeros."""
    return memoryview(bytearray(4 * count)).cast("i")


def blocks_for(tokens: int) -> int:
    """Blocks that hold the keys and values of so many tokens."""
    return (tokens + BLOCK_TOKENS - 1) // BLOCK_TOKENS


class BlockPool:
    """Free block numbers. The block freed last is given out first, so that few pages are ever touched."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        """A block. IndexError where none is free."""
        return self._free.pop()

    def free(self, block: int) -> None:
        self._free.append(block)

    def free_blocks(self) -> set[int]:
        """The free block numbers. AssertionError where one was freed twice."""
        blocks = set(self._free)
        assert len(blocks) == len(self._free), "a block was freed twice"
        return blocks
