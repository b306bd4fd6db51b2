"""Training rates of ten models on GPUs of several types, as Lambda measured them.

Source: github.com/lambdal/deeplearning-benchmark, pytorch/pytorch-train-throughput-fp16.csv at commit 0551cb70: samples
(tokens, for the language models and GNMT) per second on one GPU, and on one node of eight, in mixed precision.
"""

from __future__ import annotations

from collections.abc import Mapping

MODELS = (
    "SSD",
    "BERT base",
    "BERT large",
    "GNMT",
    "NCF",
    "ResNet-50",
    "Tacotron 2",
    "Transformer-XL base",
    "Transformer-XL large",
    "WaveGlow",
)

PER_S: Mapping[str, tuple[float, ...]] = {
    "a100": (458, 443, 152, 243_500, 30_787_381, 1582, 59_716, 43_078, 17_918, 244_438),
    "v100": (229, 189, 57, 79_111, 23_476_979, 833, 12_611, 18_493, 6071, 47_253),
    "a10": (174, 135, 42, 67_836, 15_343_208, 638, 16_900, 16_283, 5614, 80_357),
    "rtx4090": (379, 297, 93, 159_511, 32_192_491, 1301, 32_661, 40_427, 14_509, 160_816),
    "rtx8000": (182, 146, 50, 88_498, 19_801_310, 651, 18_587, 18_223, 7853, 43_964),
    "a6000": (260, 198, 68, 116_438, 25_357_954, 916, 25_496, 26_030, 11_126, 116_866),
    "8xa100": (3360, 4273, 746, 996_656, 275_620_881, 11_439, 259_884, 341_796, 142_409, 1_403_727),
    "8xv100": (1715, 1204, 286, 367_453, 186_701_873, 6174, 78_969, 157_692, 47_885, 322_112),
    "8xa6000ada": (2724, 2146, 642, 1_198_279, 287_736_583, 9211, 92_151, 313_768, 131_953, 1_109_688),
}
"""Type → rates in the order of ``MODELS``. a100: 80 GB SXM4; v100: 16 GB; a6000ada: RTX 6000 Ada."""


def speeds(shares: Mapping[str, float], model: int) -> dict[str, float]:
    """How fast a model trains on a node of each type, relative to the mean node of a pool with these shares."""
    mean = sum(share * PER_S[name][model] for name, share in shares.items()) / sum(shares.values())
    return {name: PER_S[name][model] / mean for name in shares}
