"""Writes the small .pt files beside it, as PyTorch 2.15 does: python make.py (with torch installed)."""
import collections
import os

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
plain = torch.arange(12, dtype=torch.float32)
values = {
    "one": {"key": torch.tensor([1.5, -2.5])},
    "ordered": collections.OrderedDict(a=torch.tensor([[1.0, 2.0], [3.0, 4.0]])),
    "transposed": plain.view(3, 4).t(),
    "front": plain[:4],
    "back": plain[4:],
    "bf16": torch.tensor([0.5, -3.0], dtype=torch.bfloat16),
    "half": torch.tensor([0.5, -65504.0, 2.0 ** -24], dtype=torch.float16),
    "int64": torch.tensor(1 << 40),
    "flag": torch.tensor([True, False]),
    "empty": torch.empty(0, 3),
    "parameter": torch.nn.Parameter(torch.tensor([7.0])),
    "shape": torch.Size([2, 3]),
    "dtype": torch.float32,
    "step": 12,
    "large": 1 << 40,
    "negative": -5,
    "rate": 0.25,
    "name": "caf\u00e9",
    "nothing": None,
    "list": [1, True, (2.5, "x")],
}
for protocol in (2, 3, 4, 5):
    torch.save(values, os.path.join(HERE, f"protocol_{protocol}.pt"), pickle_protocol=protocol)
torch.save(values, os.path.join(HERE, "before_1_6.pt"), _use_new_zipfile_serialization=False)
