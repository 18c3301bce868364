"""The stage of scripts/rehearsal: its processes and checks, the hub with its text and tokenizer, the server of S3."""
import base64
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MYTHOS = os.path.join(ROOT, "build", "mythos")
CONFIG = os.path.join(ROOT, "configs", "mythos_300m.toml")
DEPS = os.path.join(ROOT, ".deps")
PYTHON = os.path.join(DEPS, "python3.11")
TOKEN = "hf_rehearsal"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
# Sizes of a small model; the vocabulary stays.
SMALL = {"model.dim": 16, "model.n_heads": 2, "model.kv_lora_rank": 8, "model.q_lora_rank": 8, "model.qk_rope_head_dim": 4,
         "model.qk_nope_head_dim": 4, "model.v_head_dim": 4, "model.n_experts": 4, "model.expert_dim": 8,
         "model.max_loop_iters": 3, "train.loops": 3, "train.seq_len": 256, "data.validation_documents": 20}


class Failed(Exception):
    pass


class Missing(Exception):
    """Something of this machine without which there is no story."""


class Rehearsal:
    def __init__(self, small, work):
        self.small, self.work = small, work
        self.begun = time.monotonic()
        self.processes, self.checks, self.lines, self.plans = [], [], [], []
        self.losses = {}       # of every step that any start of the run did
        self.repeated = set()  # steps that were done more than once
        self.starts = 0
        self.run_dir = self.at("run")
        self.disk = self.at("disk")
        self.mounted = False
        self.seq_len = 256 if small else 2048
        self.environment = dict(os.environ, HF_TOKEN=TOKEN, HF_HOME=self.at("home"), GOMP_SPINCOUNT="0",
                                AWS_ACCESS_KEY_ID="rehearsal", AWS_SECRET_ACCESS_KEY="rehearsal", AWS_REGION="us-east-1",
                                AWS_EC2_METADATA_DISABLED="true", AWS_CONFIG_FILE="/nonexistent",
                                AWS_SHARED_CREDENTIALS_FILE="/nonexistent", TMPDIR=work)
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "AWS_PROFILE", "AWS_SESSION_TOKEN",
                     "AWS_ENDPOINT_URL"):
            self.environment.pop(name, None)

    # --- small tools ---

    def at(self, *names):
        return os.path.join(self.work, *names)

    def say(self, text):
        seconds = int(time.monotonic() - self.begun)
        line = f"{seconds // 60:3d}:{seconds % 60:02d}  {text}"
        self.lines.append(line)
        print(line, flush=True)

    def check(self, what, held, seen):
        self.checks.append(held)
        self.say(f"{'ok  ' if held else 'NOT '} {what}: {seen}")

    def settings(self, more):
        every = dict(SMALL) if self.small else {}
        every.update(more)
        words = []
        for key, value in every.items():
            words += ["--set", f"{key}={value}"]
        return words

    def start(self, command, log):
        """A process of its own session; killed at the end at the latest."""
        with open(log, "wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=self.work,
                                       env=self.environment, start_new_session=True)
        self.processes.append(process)
        process.log = log
        return process

    def mythos(self, *words, code=0):
        """Runs it to its end; its standard output."""
        r = subprocess.run([MYTHOS, *words], capture_output=True, text=True, cwd=self.work, env=self.environment, check=False)
        if r.returncode != code:
            raise Failed(f"mythos {' '.join(words)} ended with {r.returncode}, not {code}: {r.stderr[-2000:]}")
        return r.stdout

    def train(self, what, **settings):
        self.starts += 1
        words = [MYTHOS, "train", CONFIG, "--steps", "5744", "--set", f"run.dir={self.run_dir}"]
        process = self.start(words + self.settings(settings.pop("sets")) + settings.pop("flags", []),
                             self.at(f"start_{self.starts}.log"))
        self.say(f"start {self.starts}: {what}")
        return process

    def wait(self, process, condition, what, minutes=12):
        until = time.monotonic() + 60 * minutes
        while not condition():
            if process.poll() is not None and not condition():
                raise Failed(f"{what}: the process ended with {process.returncode}: {text_of(process.log)[-3000:]}")
            if time.monotonic() > until:
                raise Failed(f"{what}: not within {minutes} minutes: {text_of(process.log)[-3000:]}")
            time.sleep(0.02)

    def logged(self, process, pattern, what, minutes=12):
        self.wait(process, lambda: re.search(pattern, text_of(process.log)), what, minutes)
        return re.search(pattern, text_of(process.log))

    def steps(self):
        """The lines of metrics.jsonl that are steps."""
        path = os.path.join(self.run_dir, "metrics.jsonl")
        lines = []
        for line in text_of(path).splitlines(keepends=True):
            if line.endswith("\n") and '"loss"' in line:
                lines.append(json.loads(line))
        return [line for line in lines if isinstance(line.get("loss"), float) and "lr" in line]

    def last_step(self):
        lines = self.steps()
        return lines[-1]["step"] if lines else 0

    def note_losses(self):
        """Remembers every step's loss; a step that was done again must give the same one, to the last bit."""
        for line in self.steps():
            seen = (line["loss"], line["grad_norm"], line["batch"])
            before = self.losses.setdefault(line["step"], [])
            if line["seconds"] not in [s for s, _ in before]:
                before.append((line["seconds"], seen))
            if len(before) > 1:
                self.repeated.add(line["step"])

    def until_step(self, process, step):
        self.wait(process, lambda: self.last_step() >= step, f"step {step}", minutes=15)

    def training(self, process):
        """Waits until it computes its first step after a checkpoint; what earlier starts did beyond that is taken back by
        then."""
        self.wait(process, lambda: f"process {process.pid} on" in text_of(os.path.join(self.run_dir, "history.jsonl")), "a start")
        self.logged(process, "the next batch is", "the first rows")
        time.sleep(0.3)

    def terminate(self, process):
        """SIGTERM: it ends the step that it is at, saves and goes."""
        process.send_signal(signal.SIGTERM)
        self.ended(process, 143, "SIGTERM")

    def ended(self, process, code, what):
        process.wait(timeout=900)
        self.note_losses()
        if process.returncode != code:
            raise Failed(f"{what}: exit {process.returncode}, not {code}: {text_of(process.log)[-3000:]}")

    def s3(self, **command):
        self.moto.stdin.write(json.dumps(command).encode() + b"\n")
        self.moto.stdin.flush()
        return json.loads(self.moto.stdout.readline())

    def clean(self):
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if self.mounted:
            subprocess.run(["umount", "-l", self.disk], check=False)
        shutil.rmtree(self.work, ignore_errors=True)


def text_of(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read()
    except FileNotFoundError:
        return ""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())


def o200k_as_tokenizer_json():
    """gpt-oss's tokenizer.json, from the same ranks: byte-level names, all splits of a token as merges, in the order of ids."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names, other = {b: chr(b) for b in printable}, 256
    for byte in range(256):
        if byte not in names:
            names[byte] = chr(other)
            other += 1
    with open(os.path.join(DEPS, "site", "o200k_base.tiktoken"), "rb") as f:
        tokens = [base64.b64decode(line.split()[0]) for line in f]
    known = set(tokens)
    name = {t: "".join(names[b] for b in t) for t in tokens}
    merges = [[name[t[:cut]], name[t[cut:]]] for t in tokens for cut in range(1, len(t)) if t[:cut] in known and t[cut:] in known]
    with open(os.path.join(ROOT, "src", "text", "splitter.cpp"), encoding="utf-8") as f:
        source = f.read()
    rule = "".join(re.findall(r'R"[a-z]*\((.*?)\)[a-z]*"', source[source.index("o200k_pattern ="):].split(";\n", 1)[0], re.S))
    split = {"type": "Split", "pattern": {"Regex": rule}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return json.dumps({
        "version": "1.0", "normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "added_tokens": [{"id": 199999, "content": "<|endoftext|>", "special": True}],
        "model": {"type": "BPE", "vocab": {name[t]: i for i, t in enumerate(tokens)}, "merges": merges}}, ensure_ascii=False)


def serve_hub(r):
    """nginx twice: the hub, which wants the token and redirects, and the host of its files, which must never see it."""
    hub, files = free_port(), free_port()
    made = subprocess.run([PYTHON, os.path.join(ROOT, "bench", "make_fineweb.py"), "--out", r.at("www", "HuggingFaceFW", "fineweb-edu"),
                           "--mb", "2" if r.small else "12", "--files", "4"], check=True, capture_output=True, text=True,
                          env=dict(os.environ, PYTHONPATH=os.path.join(DEPS, "pyarrow"))).stdout
    write(r.at("www", "openai", "gpt-oss-20b", "tokenizer.json"), o200k_as_tokenizer_json())
    rules, entries = "", []
    for repository, name in [("HuggingFaceFW/fineweb-edu", f"sample/10BT/000_{i:05}.parquet") for i in range(4)] + [
            ("openai/gpt-oss-20b", "tokenizer.json")]:
        with open(r.at("www", repository, name), "rb") as f:
            data = f.read()
        entry = {"type": "file", "oid": "0" * 40, "size": len(data), "path": name,
                 "lfs": {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}}
        kind = "datasets/" if name.endswith("parquet") else ""
        if kind:
            entries.append(entry)
        rules += (f'location = /{kind}{repository}/resolve/{COMMIT}/{name} {{ add_header X-Linked-Etag \'"{entry["lfs"]["oid"]}"\' '
                  f'always; add_header X-Linked-Size {len(data)} always; '
                  f"return 302 http://127.0.0.1:{files}/{repository}/{name}?Signature=x; }}\n")
    for kind, repository in (("datasets", "HuggingFaceFW/fineweb-edu"), ("models", "openai/gpt-oss-20b")):
        write(r.at("hub", "api", kind, repository, "revision", "main.json"), json.dumps({"id": repository, "sha": COMMIT}))
    write(r.at("hub", "api", "datasets", "HuggingFaceFW/fineweb-edu", "tree", COMMIT, "sample", "10BT.json"), json.dumps(entries))
    temporary = " ".join(f"{k}_temp_path {r.at('nginx', k)};" for k in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    write(r.at("nginx", "nginx.conf"), f"""
daemon off; worker_processes 1; pid {r.at('nginx', 'pid')}; error_log {r.at('nginx', 'error.log')};
events {{ worker_connections 64; }}
http {{
  access_log {r.at('nginx', 'access.log')}; default_type application/octet-stream; {temporary}
  server {{
    listen 127.0.0.1:{hub}; root {r.at('hub')};
    if (-f {r.at('nginx', 'busy')}) {{ return 503; }}
    if ($http_authorization != "Bearer {TOKEN}") {{ return 401; }}
    location /api/ {{ try_files $uri $uri.json =404; }}
    {rules}
  }}
  server {{
    listen 127.0.0.1:{files}; root {r.at('www')};
    if (-f {r.at('nginx', 'busy')}) {{ return 503; }}
    if ($http_authorization) {{ return 400; }}
    if ($arg_Signature != x) {{ return 403; }}
  }}
}}""")
    os.chmod(r.work, 0o755)
    nginx = next((p for p in ("/usr/sbin/nginx", "/usr/bin/nginx") if os.access(p, os.X_OK)), None)
    if nginx is None:
        raise Failed("nginx is not installed: run scripts/setup --test")
    server = r.start([nginx, "-p", r.at("nginx"), "-c", r.at("nginx", "nginx.conf")], r.at("nginx", "out.log"))
    r.environment["HF_ENDPOINT"] = f"http://127.0.0.1:{hub}"
    r.wait(server, lambda: socket.socket().connect_ex(("127.0.0.1", hub)) == 0, "nginx", minutes=1)
    r.say(f"hub on loopback, behind a token: {made.strip().split(': ', 1)[1]}")
