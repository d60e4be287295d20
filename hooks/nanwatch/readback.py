"""How what a step's rows hold reaches host memory without anybody waiting for it.

It lands in a slot: host memory that is pre-filled with -1, so that whoever looks can tell that
all cells are there without asking the device: a CUDA call from another thread would break a
graph capture, and after a device assert events only raise, just when counts matter most.
A slot is filled by a copy of counts that are on the device, or by the kernel itself.
Counts that were made on the CPU are there already: they are copied, and need no slot.

Who does what, on which thread
    engine's    takes a slot, starts the copy or the kernel, lets go of the sources of slots that were read
    watcher's   reads slots that have landed and puts them back; makes no CUDA call
An event goes along only under fail-fast, for the engine's thread to sleep on: a wait for one has no
bound and breaks another thread's capture, so `result()`, which anybody may call, looks at the slot.

    R = logits rows of a step, S = parts of a row, P = planes (findings.py)
"""

import ctypes
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from .findings import INT32_BYTES, PLANES, Shape

NOT_LANDED = -1
MOST_ROWS = 16_384
MOST_PROGRAMS = 2048
"""More cells than rows that a kernel may ask for: it splits long rows so that few rows fill a GPU."""
SLOTS = 64
_STILL_MINUS_ONE = b"\xff" * INT32_BYTES

Copy = Callable[[Tensor, Tensor], object]  # (destination, source), on the current stream


class Counts(Protocol):
    """The cells of one step on their way to the host, [P, R, S] int32."""

    @property
    def shape(self) -> Shape:
        """How they lie."""
        ...

    def landed(self) -> bool:
        """Whether every cell is there; never waits and makes no device call."""
        ...

    def take(self) -> bytes:
        """Return the landed cells and give their memory back; once."""
        ...

    def abandon(self) -> None:
        """Do without them; their memory is given back when they have landed after all."""
        ...

    def wait(self) -> None:
        """Sleep until the device is through with them, where there is an event for that."""
        ...


class Event(Protocol):
    """A mark in a stream; torch.cuda.Event is one."""

    def record(self) -> object:
        """Set the mark behind all that is in the current stream."""
        ...

    def synchronize(self) -> object:
        """Wait for it."""
        ...


class Slot:
    """A place for the cells of one step, pinned where they come from a GPU."""

    __slots__ = ("_address", "_cells", "_event", "_pool", "_source", "_tensor", "shape")

    def __init__(self, most_cells: int, pool: "SlotPool", *, pinned: bool, event: Event | None) -> None:
        self._tensor = torch.full(
            (most_cells,), NOT_LANDED, dtype=torch.int32, device="cpu", pin_memory=pinned
        )
        self._address = self._tensor.data_ptr()
        self._cells = (ctypes.c_int32 * most_cells).from_address(self._address)
        self._pool, self._event = pool, event
        self._source: Tensor | None = None
        self.shape = Shape(0)

    @property
    def memory(self) -> Tensor:
        """Where a kernel writes the cells to, -1 each until then."""
        return self._tensor

    def begin(self, counts: Tensor, copy: Copy) -> None:
        """Start the copy of `counts`, of this slot's shape, into it.

        The source is kept until the slot was read: the caching allocator may hand its memory to
        the next step while the copy is still queued, where that step runs on another stream.
        """
        self._source = counts
        copy(self._tensor[: self.shape.cells], counts.reshape(-1))
        self.sent()

    def sent(self) -> None:
        """Note that all that fills this slot is in the current stream."""
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        """Sleep until the device is through; an event only raises after a device assert."""
        if self._event is not None:
            self._event.synchronize()

    def landed(self) -> bool:
        """Whether every cell is there.

        A count is below 2^31, so the highest byte of one that landed is below 0x80, and any four
        bytes in a row hold one such byte: four times 0xFF is found only where a -1 still stands.
        """
        cells = self.shape.cells
        if cells and self._cells[cells - 1] == NOT_LANDED:  # mostly the last to land
            return False
        return _STILL_MINUS_ONE not in ctypes.string_at(self._address, cells * INT32_BYTES)

    def take(self) -> bytes:
        """Return the cells, fill the slot with -1 again and give it back to its pool."""
        size = self.shape.cells * INT32_BYTES
        cells = ctypes.string_at(self._address, size)
        ctypes.memset(self._address, 0xFF, size)
        self._pool.give_back(self)
        return cells

    def abandon(self) -> None:
        """Leave it to its pool until the copy, which may yet come, has come."""
        self._pool.set_aside(self)

    def let_go(self) -> None:
        """Forget the source, on the engine's thread: freeing device memory may make a CUDA call."""
        self._source = None


class SlotPool:
    """The slots of one probe: made once, used in turn, never more than `slots`."""

    def __init__(
        self,
        *,
        pinned: bool,
        most_rows: int = MOST_ROWS,
        slots: int = SLOTS,
        copy: Copy | None = None,
        make_event: Callable[[], Event] | None = None,
    ) -> None:
        self._most_rows = most_rows
        self._copy = copy or _copy_without_waiting
        self._read: deque[Slot] = deque()  # put there by whichever thread read them
        self._abandoned: deque[Slot] = deque()
        cells = PLANES * (most_rows + MOST_PROGRAMS)
        with torch.inference_mode(mode=False):  # a tensor made in inference mode cannot be written outside it
            self._free = [
                Slot(cells, self, pinned=pinned, event=make_event() if make_event else None)
                for _ in range(slots)
            ]

    def send(self, counts: Tensor, shape: Shape | None = None) -> Counts | str:
        """Start the way of `counts` [R], or [P, R, S], to the host; a drop reason where there is no place."""
        slot = self.slot(shape or Shape(counts.numel()))
        if not isinstance(slot, str):
            slot.begin(counts, self._copy)
        return slot

    def slot(self, shape: Shape) -> Slot | str:
        """Take a slot for cells of this shape; a drop reason where there is none."""
        self._take_in()
        if shape.rows > self._most_rows:
            return "rows"
        try:
            slot = self._free.pop()
        except IndexError:
            return "slots"
        slot.shape = shape
        return slot

    def give_back(self, slot: Slot) -> None:
        """Put a slot back that was read; from any thread."""
        self._read.append(slot)

    def set_aside(self, slot: Slot) -> None:
        """Keep a slot that nobody waits for until it has landed; from any thread."""
        self._abandoned.append(slot)

    def put_back_unused(self, slot: Slot) -> None:
        """Put a slot back that nothing was sent to; on the engine's thread."""
        self._free.append(slot)

    def _take_in(self) -> None:
        """Make the slots that were read free again; those set aside once they have landed."""
        if self._abandoned and self._abandoned[0].landed():
            self._abandoned.popleft().take()
        while self._read:
            slot = self._read.popleft()
            slot.let_go()
            self._free.append(slot)


def bytes_of(counts: Tensor) -> bytes:
    """Copy counts [R] int32 that were made on the CPU: they are there, nothing has to be waited for."""
    return ctypes.string_at(counts.data_ptr(), counts.numel() * INT32_BYTES)


def pool_on(device: torch.device, *, events: bool) -> SlotPool:
    """Make the slots for counts from `device`, pinned for a GPU; makes CUDA calls, so never inside a capture.

    The device is entered for it: pinned memory and events of a process belong to the device that is
    current, and a context on another rank's GPU would cost its memory.
    """
    on_gpu = device.type == "cuda"
    entered: AbstractContextManager[object] = torch.cuda.device(device) if on_gpu else nullcontext()
    with entered:
        return SlotPool(pinned=on_gpu, make_event=_blocking_event if on_gpu and events else None)


def _blocking_event() -> Event:
    """Make an event that sleeps; torch.Event ignores `blocking` in torch 2.13, and spins."""
    event: Event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    return event


def _copy_without_waiting(destination: Tensor, source: Tensor) -> None:
    destination.copy_(source, non_blocking=True)
