"""Some programs of a kernel, which go together until some go another way than the others."""

import numpy as np
from memory import Fault, GlobalMemory, SharedMemory
from program import Program
from warps import Parting, Warps


class Programs:
    """Warps go one after the other from barrier to barrier, groups of four where a kernel multiplies by groups."""

    def __init__(
        self, program: Program, places: list[dict[str, int]], given: dict[str, int], outside: GlobalMemory, size: int
    ):
        shared, warps, step = SharedMemory(len(places), size), program.threads // 32, 4 if program.has_groups else 1
        together = [range(first, min(first + step, warps)) for first in range(0, warps, step)]
        self.name = program.name
        self.going = [Warps(program, some, places, given, outside, shared) for some in together]

    def of(self, programs: np.ndarray) -> "Programs":
        some, shared = object.__new__(Programs), self.going[0].shared.of(programs)
        some.name, some.going = self.name, [each.of(programs, shared) for each in self.going]
        return some

    def run(self) -> None:
        while self.going:
            for some in self.going:
                try:
                    if some.barrier is None and not some.ended:
                        some.run()
                except Parting as parting:
                    self.of(parting.programs).run()
                    self.of(~parting.programs).run()
                    return
            self.pass_barrier()

    def pass_barrier(self) -> None:
        """The next time warps go in the other order."""
        barriers = {some.barrier for some in self.going}
        if len(barriers) > 1:
            raise Fault(f"{self.name}: warps wait at different places: {barriers}")
        self.going = [some for some in reversed(self.going) if some.barrier is not None]
        written = [places for some in self.going for places in some.written]
        for some in self.going:
            some.settled, some.written, some.barrier = some.settled + written, [], None
