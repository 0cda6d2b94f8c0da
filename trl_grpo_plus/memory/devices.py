"""GPUs and their memory, and what CUDA takes beside the tensors.

A plan counts tensors. On a GPU the driver's context, the libraries' workspaces and the allocator's unused blocks come
on top; they are stated as an allowance of their own, so that it can be seen, changed, and checked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import UserError, did_you_mean

MIB, GIB = 2**20, 2**30

# Total memory in MiB, as nvidia-smi reports it. (Unlike the label on the box, this is what there is to share.)
_GPUS_MIB = {
    "t4": 15360, "p100": 16384, "v100-16gb": 16384, "v100-32gb": 32768,
    "rtx2080ti": 11264, "rtx3060": 12288, "rtx3080": 10240, "rtx3090": 24576,
    "rtx4060ti-16gb": 16380, "rtx4070": 12282, "rtx4080": 16376, "rtx4090": 24564, "rtx5080": 16303, "rtx5090": 32607,
    "a10": 23028, "a10g": 23028, "l4": 23034, "a40": 46068, "l40s": 46068, "rtxa6000": 49140, "rtx6000ada": 49140,
    "a100-40gb": 40960, "a100-80gb": 81920, "a100": 81920, "h100": 81559, "h200": 143771, "b200": 183359,
}  # fmt: skip
_UNITS = {"": GIB, "gb": GIB, "gib": GIB, "g": GIB, "mb": MIB, "mib": MIB, "m": MIB}


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """What CUDA takes beside tensors: an allowance, not a measurement of your card.

    Args:
        context_bytes: Driver context, kernels, and cuBLAS's workspace.
        fragmentation: Blocks that the caching allocator holds and cannot use, as a share of the tensors.
    """

    context_bytes: int = 700 * MIB
    fragmentation: float = 0.05

    def of(self, tensor_bytes: int) -> int:
        """Bytes beside `tensor_bytes` of tensors."""
        return self.context_bytes + int(tensor_bytes * self.fragmentation)

    def room_for_tensors(self, device_bytes: int) -> int:
        """The most bytes of tensors that a device of `device_bytes` holds."""
        return max(int((device_bytes - self.context_bytes) / (1 + self.fragmentation)), 0)


NO_OVERHEAD = Overhead(context_bytes=0, fragmentation=0.0)


def parse_device(text: str) -> int:
    """Returns the memory in bytes of a GPU given by name (`rtx4090`, `A100-80GB`) or size (`24GB`, `23028MiB`).

    Cards are labelled in GB and mean GiB, so a size in GB is read as GiB.

    Raises:
        UserError: It is neither; names the closest GPU known.
    """
    plain = re.sub(r"^(nvidia|geforce)+", "", re.sub(r"[\s_]", "", text.lower()))
    squeezed = plain.replace("-", "").replace("geforce", "")
    for name, mib in _GPUS_MIB.items():
        if squeezed in (name.replace("-", ""), name.replace("-", "").removeprefix("rtx")):
            return mib * MIB
    size = re.fullmatch(r"(\d+(?:\.\d+)?)(gib|gb|g|mib|mb|m|)", plain)
    if size:
        device_bytes = int(float(size[1]) * _UNITS[size[2]])
        if device_bytes <= 0:
            raise UserError(f"--gpu {text!r}: a device needs memory, such as 24GB")
        return device_bytes
    raise UserError(
        f"--gpu {text!r} is not known{did_you_mean(plain, _GPUS_MIB)}: give its memory (24GB), or one of "
        f"{', '.join(_GPUS_MIB)}"
    )
