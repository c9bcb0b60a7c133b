"""`launch_nowhere.py FOLDER`: what Triton's own launcher, in C, tells a driver when kernels are launched three ways.

A driver that launches nothing (no_driver.c) is made in the folder. For each kernel of some passes JSON tells what it is
told: as Triton launches, as we launch with tensors, and with addresses.
"""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

os.environ["TRITON_INTERPRET"] = "0"  # before anything imports triton
os.environ["TRITON_LIBCUDA_PATH"] = sys.argv[1]
sys.path.append(str(Path(__file__).parents[1]))

import torch
import triton
from elsewhere import Elsewhere
from torch import Tensor
from triton.backends.nvidia import driver

from palimpsest.gates import Gates
from palimpsest.kernels import memory_scan, pages, relative_attention, trust
from palimpsest.kernels.fused import launching
from palimpsest.kernels.fused.launching import Compiled
from palimpsest.relative import Relative

FOLDER, STREAM = Path(sys.argv[1]), 7
SIZES = {"i32": 4, "i64": 8, "fp32": 4}


class Nowhere(Elsewhere):
    """Triton's driver, of a device that is not there."""

    def __init__(self):
        super().__init__(90)
        self.utils, self.launcher_cls = driver.CudaUtils(), driver.CudaLauncher
        self.map_python_to_cpp_type = driver.ty_to_cpp

    def get_current_stream(self, device: int) -> int:
        return STREAM


def made_driver() -> ctypes.CDLL:
    include = Path(driver.__file__).parent / "include"
    found, source = FOLDER / "libcuda.so.1", Path(__file__).with_name("no_driver.c")
    name = "-Wl,-soname,libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", f"-I{include}", name, "-o", found, source], check=True)
    (FOLDER / "libcuda.so").symlink_to(found)
    return ctypes.CDLL(str(found), mode=ctypes.RTLD_GLOBAL)


class Driver:
    def __init__(self, library: ctypes.CDLL):
        self.count, self.launches = (ctypes.c_int.in_dll(library, name) for name in ("count", "launches"))
        self.sizes = (ctypes.c_int * 256).in_dll(library, "sizes")
        self.about = (ctypes.c_uint64 * 7).in_dll(library, "about")
        self.parameters = (ctypes.c_uint64 * 256).in_dll(library, "parameters")

    def told(self, sizes: list[int], launch: Callable[[], object]) -> list[int]:
        """What it is told by a launch with parameters of so many bytes."""
        self.count.value, before = len(sizes), self.launches.value
        self.sizes[: len(sizes)] = sizes
        launch()
        self.count.value = 0
        assert self.launches.value == before + 1
        return [*self.about, *self.parameters[: len(sizes)]]


def kinds_in(signature: Any) -> Iterator[str]:
    """Of what a kernel is told when it is launched."""
    for kind in signature:
        if isinstance(kind, tuple):
            yield from kinds_in(kind)
        elif kind != "constexpr":
            yield kind


def by_address(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return tuple(map(by_address, argument))
    return argument.data_ptr() if isinstance(argument, Tensor) else argument


class Compared(Compiled):
    """A kernel that is launched in all three ways."""

    found: ClassVar[list[list[list[int]]]] = []
    driver: ClassVar[Driver]

    def __init__(self, binary, grid, arguments, rest):
        super().__init__(binary, grid, arguments, rest)
        kinds = kinds_in(binary.src.signature.values())
        self.sizes = [8 if kind.startswith("*") else SIZES[kind] for kind in kinds]

    def __call__(self, arguments):
        assert self.straight is not None
        addresses = [*map(by_address, arguments), *self.rest]
        ways = [
            lambda: self.runner(*arguments, *self.rest),
            lambda: super(Compared, self).__call__(arguments),
            lambda: self.straight(STREAM, addresses),
        ]
        self.found.append([self.driver.told(self.sizes, launch) for launch in ways])


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape).to(dtype).requires_grad_()


def scanned(width: int) -> Tensor:
    tokens = (2, 100, 4)
    queries, keys, values, beta = draw(*tokens, width), draw(*tokens, width), draw(*tokens, width), draw(*tokens)
    return memory_scan(queries, keys, values, Gates(None, beta, beta, 1.0), backend="fused")[0]


def attended() -> Tensor:
    queries, keys, values, places = (draw(2, 64, 4, 64) for _ in range(4))
    relative = Relative(places, draw(64, 4, 64), None)
    return relative_attention(queries, keys, values, relative=relative, backend="fused")


def main() -> None:
    Compared.driver = Driver(made_driver())
    triton.runtime.driver.set_active(Nowhere())  # pyright: ignore[reportArgumentType]
    trust.INTERPRETED = pages.INTERPRETED = True  # what is for GPUs then allows CPUs
    launching.Compiled = Compared
    for run in (lambda: scanned(64), lambda: scanned(128), attended):
        for _ in range(2):  # the first time they are compiled
            run().sum().backward()
    print(json.dumps(Compared.found))


if __name__ == "__main__":
    main()
