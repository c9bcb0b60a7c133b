"""As much of a driver as Triton asks for to compile for a GPU that is not there."""

from triton.backends.compiler import GPUTarget


class Elsewhere:
    def __init__(self, capability: int):
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0
