"""Who is reading what. A pinned block is not written: the slot moves on to another one, and the old block is freed
when its last reader lets go."""

from __future__ import annotations

from collections.abc import Collection

from windlass.types import Block, Incarnation, Memory


class Pins:
    """Counts readers of blocks. A reader lets go by Release, by Sent, or by dying."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.next = 1
        self._held: dict[int, tuple[Incarnation, Block]] = {}
        self._readers: dict[int, int] = {}  # id(block) -> how many pins hold it
        self._retired: dict[int, Block] = {}  # blocks that no slot uses any more, kept for their readers

    def pin(self, reader: Incarnation, block: Block) -> int:
        pin = self.number()
        self._held[pin] = (reader, block)
        self._readers[id(block)] = self._readers.get(id(block), 0) + 1
        return pin

    def number(self) -> int:
        """One that nothing of this server has, higher than all that something has."""
        number = self.next
        self.next += 1
        return number

    def is_pinned(self, block: Block) -> bool:
        return id(block) in self._readers

    def release(self, pin: int) -> None:
        """Let go; harmless to repeat."""
        held = self._held.pop(pin, None)
        if held is None:
            return
        address = id(held[1])
        left = self._readers[address] - 1
        if left:
            self._readers[address] = left
            return
        del self._readers[address]
        retired = self._retired.pop(address, None)
        if retired is not None:
            self._memory.free(retired)

    def release_all(self, reader: Incarnation, but: Collection[int] = (), before: int | None = None) -> None:
        """Let go of all that this reader has, but for these and for those made later."""
        end = self.next if before is None else before
        for pin in [pin for pin, (who, _) in self._held.items() if who == reader and pin not in but and pin < end]:
            self.release(pin)

    def retire(self, block: Block | None) -> None:
        """The slot that used this block has moved on: free it now, or when its last reader lets go."""
        if block is None or not block.array.nbytes:  # a value of no elements has no memory
            return
        if self.is_pinned(block):
            self._retired[id(block)] = block
        else:
            self._memory.free(block)

    def __len__(self) -> int:
        return len(self._held)
