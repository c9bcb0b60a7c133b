"""The memory scan in Triton: the chunked form (kernels/chunked.py), in four kernels.

    prepare     all chunks side by side: T = (I + A)⁻¹, how much of each note each read sees, and what is kept
    carry       chunk after chunk: notes = T (write · value − erase · recall), the reads, the page
    carry_back  the same, last chunk first: the gradients of the page after each chunk, of what T was given, of values
    gradients   all chunks side by side: everything else, from the pages before and their gradients after each chunk;
                those of wide heads that keep all two at a time (block_kernels.py)

Where keys are counted, a page has one column more than there are values, PAGE = VALUES + 1, in which every key writes a
one. Those ones are not in memory either, and what is read of that column, the mass, is written by itself.

Raw queries and keys are read from memory; their features exist on chip alone. All tiles have fewer than 64 rows: from
there on Triton (3.4 to 3.7.0) would use Hopper's warp group products, and lose track of their addresses in loops like
these. What is saved for backward lies as it is multiplied, and a tile that `gradients` multiplies has no other use:
anything else that is done with it has Triton lay it out in shared memory so that products wait for it.
"""

from .block_kernels import block_gradients_kernel, little_gates_kernel
from .carry_kernels import carry_back_kernel, carry_kernel
from .gradient_kernels import gradients_kernel
from .parts import parts_kernel, read_back_kernel
from .prepare_kernels import prepare_kernel

__all__ = [
    "block_gradients_kernel",
    "carry_back_kernel",
    "carry_kernel",
    "gradients_kernel",
    "little_gates_kernel",
    "parts_kernel",
    "prepare_kernel",
    "read_back_kernel",
]
