"""A source that is there as a whole: every query sees all of it, whatever the order.

memory = Σ write · key ⊗ value                                    written once, whatever is asked of it
read   = queryᵀ memory
"""

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..axes import check_axes
from .scan import full_precision, memory_dtype


def source_memory(keys: Tensor, values: Tensor, write: Tensor) -> Tensor:
    """keys `b s h k`, values `b s h v`, write `b s h` -> memory `b h k v`, at least in float32."""
    check_axes(keys=(keys, "b s h k"), values=(values, "b s h v"), write=(write, "b s h"))
    dtype = memory_dtype(values.dtype)
    with full_precision(values.device.type):
        written = (values.to(dtype) * write.to(dtype)[..., None]).transpose(1, 2)
        return keys.to(dtype).permute(0, 2, 3, 1) @ written


def read_memory(queries: Tensor, memory: Tensor) -> Tensor:
    """queries `b t h k`, memory `b h k v` -> reads `b t h v`, in the type of the queries."""
    check_axes(queries=(queries, "b t h k"), memory=(memory, "b h k v"))
    with full_precision(queries.device.type):
        reads = queries.to(memory.dtype).transpose(1, 2) @ memory
    return reads.transpose(1, 2).to(queries.dtype)


def source_attention(queries: Tensor, keys: Tensor, values: Tensor, present: Tensor, dropout: float = 0.0) -> Tensor:
    """queries `b t h k`, keys `b s h k`, values `b s h v`, present `b s` -> reads `b t h v`; nothing is scaled."""
    check_axes(
        queries=(queries, "b t h k"), keys=(keys, "b s h k"), values=(values, "b s h v"), present=(present, "b s")
    )
    reads = scaled_dot_product_attention(
        *(z.transpose(1, 2) for z in (queries, keys, values)),
        attn_mask=present[:, None, None, :].expand(-1, -1, queries.shape[1], -1),
        dropout_p=dropout,
        scale=1.0,
    )
    return reads.transpose(1, 2)
