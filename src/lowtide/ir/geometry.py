"""Where the elements of a tensor lie inside a storage, without a tensor.

Units: `_B` bytes; shapes, strides and offsets count elements.
"""

from __future__ import annotations

import msgspec

ITEM_B = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
    "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8,
    "complex32": 4, "complex64": 8, "complex128": 16,
}  # fmt: skip


class Geometry(msgspec.Struct, frozen=True):
    """A dtype and a strided window on a storage.

    Arguments:
        dtype: torch's name of it without the prefix, `"float32"`.
        shape: elements per dimension.
        stride: elements to the next along each dimension.
        offset: elements before the first one.
        device: the memory's torch device type, `"cpu"` or `"cuda"`.
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    device: str = "cpu"

    @property
    def numel(self) -> int:
        """Elements, counted once each even where strides make them overlap."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def extent_B(self) -> int:
        """Bytes from the start of the storage to the end of the last element."""
        if self.numel == 0:
            return 0
        last = self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        return (last + 1) * ITEM_B[self.dtype]

    @property
    def is_dense(self) -> bool:
        """Whether the elements fill the storage up to `extent_B` without a hole, each in a place of its own."""
        dims = sorted((s, n) for n, s in zip(self.shape, self.stride, strict=True) if n != 1)
        expected = 1
        for stride, extent in dims:
            if stride != expected:
                return False
            expected *= extent
        return self.offset == 0

    def has_bytes_of(self, other: Geometry) -> bool:
        """Whether both address the same bytes the same way.

        Strides of dimensions of size 1 count too: by them kernels tell whether channels come last.
        """
        if (self.dtype, self.shape, self.offset, self.device) != (other.dtype, other.shape, other.offset, other.device):
            return False
        return self.numel == 0 or self.stride == other.stride
