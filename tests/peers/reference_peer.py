"""Reads what `mythos convert` wrote with the Python reference and PyTorch alone, and says how far it is off.

usage: reference_peer.py FOLDER GOLDEN        GOLDEN: path of the reference's checkpoint without its suffix; prints JSON

FOLDER holds again.pt, both.safetensors and out/{model.safetensors,config.json}, all made from GOLDEN.pt.
"""
import json
import os
import sys

import open_mythos_alone  # noqa: F401
import torch
import torch.nn.functional as F
from open_mythos.main import MythosConfig, OpenMythos
from safetensors.torch import load_file


def logits_of(model, ids):
    model.eval()
    with torch.no_grad():
        return model(ids)


def next_losses(checkpoint, steps):
    """As the reference's own script resumes."""
    model = OpenMythos(checkpoint["cfg"])
    model.load_state_dict(checkpoint["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    optimizer.load_state_dict(checkpoint["optimizer"])
    losses = []
    for rows, lr in zip(steps["ids"], steps["lr"]):
        rows = torch.tensor(rows)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(made, golden):
    torch.set_num_threads(1)
    expected = load_file(golden + "_expected.safetensors")
    out = {}

    def compare(name, model):
        out[name] = (logits_of(model, expected["input_ids"]) - expected["logits"]).abs().max().item()

    torch.serialization.add_safe_globals([MythosConfig])
    checkpoint = torch.load(os.path.join(made, "again.pt"), weights_only=True)
    model = OpenMythos(checkpoint["cfg"])
    model.load_state_dict(checkpoint["model"])
    compare("pt", model)
    state = checkpoint["model"]
    out["head shares"] = state["head.weight"].data_ptr() == state["embed.weight"].data_ptr()
    out["step"] = checkpoint["step"]

    with open(os.path.join(made, "out/config.json"), encoding="utf-8") as f:
        config = MythosConfig(**json.load(f))
    model = OpenMythos(config)
    missing, unexpected = model.load_state_dict(load_file(os.path.join(made, "out/model.safetensors")), strict=False)
    out["missing"], out["unexpected"] = sorted(missing), unexpected
    compare("folder", model)

    model = OpenMythos(config)
    model.load_state_dict(load_file(os.path.join(made, "both.safetensors")))
    compare("both", model)

    with open(golden + "_next.json", encoding="utf-8") as f:
        steps = json.load(f)
    out["losses off"] = max(abs(a - b) for a, b in zip(next_losses(checkpoint, steps), steps["loss"]))
    print(json.dumps(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
