"""The reference's side of bench/against_reference: one piece of work in a process of its own.

usage: reference_worker.py WORK.json      prints one JSON document

Runs with the Python and the packages that scripts/peers installed. The model is open_mythos.main as published, unchanged;
around it stands the training step of its author's own scripts, in fp32 on the CPU.
"""
import json
import os
import resource
import sys
import time
import types


def import_reference():
    """open_mythos.main without the package's __init__, which wants transformers and datasets for its tokenizer."""
    folder = next(os.path.join(p, "open_mythos") for p in sys.path if os.path.isdir(os.path.join(p, "open_mythos")))
    package = types.ModuleType("open_mythos")
    package.__path__ = [folder]
    sys.modules["open_mythos"] = package
    import open_mythos.main
    return open_mythos.main


def build(work):
    main = import_reference()
    return main.OpenMythos(main.MythosConfig(**work["model"]))


def load(work):
    """The model with the weights of the file, tensor by tensor, so that they are not in memory twice."""
    import torch
    from safetensors import safe_open
    model = build(work)
    with safe_open(work["weights"], "pt") as file, torch.no_grad():
        for name, parameter in model.named_parameters():  # the tied embedding once, no buffers
            parameter.copy_(file.get_tensor(name))
    return model


def zipf(shape, vocabulary, generator):
    """Ids with frequencies like those of words, so that a few steps already lower the loss: the rank's logarithm is
    uniform, and the ranks are spread over the vocabulary."""
    import torch
    spread = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(1))
    rank = (torch.rand(shape, generator=generator, dtype=torch.float64) * torch.log(torch.tensor(float(vocabulary)))).exp()
    return spread[(rank.long() - 1).clamp(0, vocabulary - 1)]


def prepare(work):
    """Writes weights, batches and a prompt."""
    import torch
    from safetensors.torch import save_file
    torch.manual_seed(work["seed"])
    model = build(work)
    save_file({name: p.detach() for name, p in model.named_parameters()}, work["weights"])
    vocabulary = work["model"]["vocab_size"]
    generator = torch.Generator().manual_seed(work["seed"] + 1)
    rows = zipf((work["batches_n"], work["micro_batch"], work["seq_len"] + 1), vocabulary, generator)
    save_file({"input_ids": rows[..., :-1].contiguous(), "targets": rows[..., 1:].contiguous()}, work["batches"])
    save_file({"prompt": zipf((work["prompt_tokens"],), vocabulary, generator)}, work["prompt"])
    return {"parameters": sum(p.numel() for p in model.parameters())}


def train(work):
    import torch
    import torch.nn.functional as F
    from safetensors.torch import load_file
    model = load(work)
    model.train()
    batches = load_file(work["batches"])
    o = work["optimizer"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=o["lr"], betas=tuple(o["betas"]), weight_decay=o["weight_decay"],
                                  fused=True)

    def step(ids, targets):
        logits = model(ids, n_loops=work["loops"])
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), o["clip"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item(), norm.item()

    seconds, losses, norms = [], [], []
    for s in range(work["warmup"] + work["steps"]):
        row = s % len(batches["input_ids"])
        begin = time.perf_counter()
        loss, norm = step(batches["input_ids"][row], batches["targets"][row])
        seconds.append(time.perf_counter() - begin)
        losses.append(loss)
        norms.append(norm)
        print(f"step {s + 1}: loss {loss:.4f}, {seconds[-1]:.1f} s", file=sys.stderr, flush=True)
    return {"step_seconds": seconds, "losses": losses, "gradient_norms": norms}


def generate(work):
    """As the model's own generate(), but always the most likely token instead of a drawn one."""
    import torch
    from safetensors.torch import load_file
    model = load(work)
    model.eval()
    prompt = load_file(work["prompt"])["prompt"].unsqueeze(0)

    @torch.no_grad()
    def decode(new_tokens):
        ids, cache, seconds, top, gaps = prompt, {}, [], [], []
        for made in range(new_tokens):
            begin = time.perf_counter()
            current = ids if made == 0 else ids[:, -1:]
            logits = model(current, n_loops=work["loops"], kv_cache=cache, start_pos=0 if made == 0 else ids.shape[1] - 1)
            logits = logits[:, -1, :]
            chosen = logits.argmax(dim=-1, keepdim=True)
            ids = torch.cat([ids, chosen], dim=1)
            chosen.item()
            seconds.append(time.perf_counter() - begin)
            first, second = logits[0].topk(2).values.tolist()
            top.append(first)
            gaps.append(first - second)
        return ids[0, prompt.shape[1]:].tolist(), seconds, top, gaps

    decode(2)
    ids, seconds, top, gaps = decode(work["new_tokens"])
    return {"prefill_s": seconds[0], "token_seconds": seconds[1:], "ids": ids, "top_logits": top, "gaps": gaps}


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        work = json.load(f)
    import torch
    torch.set_num_threads(work["threads"])
    result = {"prepare": prepare, "train": train, "generate": generate}[work["work"]](work)
    result["threads"] = torch.get_num_threads()
    result["torch"] = torch.__version__
    result["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(result))


if __name__ == "__main__":
    main()
