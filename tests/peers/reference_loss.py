"""The Python reference on what `mythos convert` wrote: its loss of some ids, and the tokens it goes on with after five of them.

usage: reference_loss.py FOLDER IDS LOOPS MORE      IDS: a JSON list; prints {"loss": .., "greedy": [MORE ids]}
"""
import json
import os
import sys
import types

folder = next(os.path.join(p, "open_mythos") for p in sys.path if os.path.isdir(os.path.join(p, "open_mythos")))
package = types.ModuleType("open_mythos")  # without its __init__, which wants its tokenizer's requirements
package.__path__ = [folder]
sys.modules["open_mythos"] = package

import torch
from open_mythos.main import MythosConfig, OpenMythos
from safetensors.torch import load_file

out, ids, loops, more = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
with open(out + "/config.json", encoding="utf-8") as f:
    model = OpenMythos(MythosConfig(**json.load(f)))
model.load_state_dict(load_file(out + "/model.safetensors"), strict=False)
model.eval()
with torch.no_grad():
    logits = model(torch.tensor([ids]), n_loops=loops)[0]
    loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])).item()
    new = list(ids[:5])
    for _ in range(more):
        new.append(int(model(torch.tensor([new]), n_loops=loops)[0, -1].argmax()))
print(json.dumps({"loss": loss, "greedy": new[5:]}))
