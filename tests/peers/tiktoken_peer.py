"""tiktoken's o200k_base, offline, for comparison with ours.

usage: tiktoken_peer.py O200K_FILE < LINES > LINES

One line {"text": ...} in, one line {"ids": [...]} out. Run it with the Python and the folder that scripts/peers chose
(.deps/peers/tiktoken/python, PYTHONPATH=.deps/peers/tiktoken/site). It uses no network: tiktoken finds the vocabulary in
its cache, which is made here and checked there against the hash that tiktoken itself expects.
"""
import hashlib
import json
import os
import sys
import tempfile

URL = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"


def load(o200k_file):
    """The encoding exactly as tiktoken defines it, splitting rule and all."""
    with tempfile.TemporaryDirectory() as cache:
        os.symlink(os.path.abspath(o200k_file), os.path.join(cache, hashlib.sha1(URL.encode()).hexdigest()))
        os.environ["TIKTOKEN_CACHE_DIR"] = cache
        import tiktoken
        return tiktoken.get_encoding("o200k_base")


def main(o200k_file):
    encoding = load(o200k_file)
    for line in sys.stdin:
        print(json.dumps({"ids": encoding.encode_ordinary(json.loads(line)["text"])}, separators=(",", ":")))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
