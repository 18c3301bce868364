"""The Python reference on what `mythos convert` wrote: its loss of some ids, and its logits against ours.

usage: reference_logits.py FOLDER GENERATION LOOPS IDS...      prints {"loss": of IDS, "off": .., "largest": .., "compared": N}

GENERATION: what `mythos generate --json --top-logits N` said. "off" is the largest difference of a logit, "largest" the
largest logit.
"""
import json
import sys

import open_mythos_alone  # noqa: F401
import torch
from open_mythos.main import MythosConfig, OpenMythos
from safetensors.torch import load_file

out, said, loops, ids = sys.argv[1], sys.argv[2], int(sys.argv[3]), [int(word) for word in sys.argv[4:]]
with open(out + "/config.json", encoding="utf-8") as f:
    model = OpenMythos(MythosConfig(**json.load(f)))
model.load_state_dict(load_file(out + "/model.safetensors"), strict=False)
model.eval()
with open(said, encoding="utf-8") as f:
    ours = json.load(f)
off = largest = compared = 0
with torch.no_grad():
    logits = model(torch.tensor([ids]), n_loops=loops)[0]
    loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])).item()
    all_ids = ids[: ours["prompt_tokens"]] + ours["ids"]
    logits = model(torch.tensor([all_ids]), n_loops=loops)[0]
    for i, top in enumerate(ours["top_logits"]):
        theirs = logits[ours["prompt_tokens"] - 1 + i][torch.tensor(top["ids"])]
        off = max(off, (theirs - torch.tensor(top["logits"])).abs().max().item())
        largest = max(largest, theirs.abs().max().item())
        compared += len(top["ids"])
print(json.dumps({"loss": loss, "off": off, "largest": largest, "compared": compared}))
