"""Makes the demo's text from two Debian packages: WordNet's glosses (wordnet-base) and the King James Bible (bible-kjv-text).

usage: demo_text.py OUT_DIR

Writes OUT_DIR/train.txt and OUT_DIR/heldout.txt, documents separated by a blank line, the same bytes on every machine:
- a WordNet synset is a document: its first word, a colon and the gloss as published
  ("Tokyo: the capital and largest city of Japan; the economic and cultural center of Japan");
- four verses of one chapter are a document, one verse a line, without their numbers.
4,000 synsets, chosen by a fixed seed, are held out; no gloss among them is in train.txt, under any word.
"""
import lzma
import os
import random
import re
import struct
import subprocess
import sys

WORDNET = os.environ.get("MYTHOS_DEMO_WORDNET", "/usr/share/wordnet")
BIBLE = os.environ.get("MYTHOS_DEMO_BIBLE", "/usr/lib/bible.data")
SEED = 20260524
HELD_OUT = 4000
VERSES = 4  # of one chapter in a document


def need(path, package):
    if not os.path.exists(path):
        sys.exit(f"demo_text: {path} is missing: install the Debian package {package} (scripts/setup does)")
    return path


def synsets():
    """(word, gloss) of every synset, in the order of the data files; their format is wndb(5WN)."""
    for part in ("noun", "verb", "adj", "adv"):
        with open(need(f"{WORDNET}/data.{part}", "wordnet-base"), encoding="utf-8", errors="strict") as f:
            for line in f:
                if line.startswith("  "):  # the licence at the top
                    continue
                data, _, gloss = line.partition(" | ")
                word = data.split(" ", 5)[4]  # offset, file, type, count, first word
                word = re.sub(r"\((a|p|ip)\)$", "", word).replace("_", " ")
                gloss = " ".join(gloss.split())
                if gloss:
                    yield word, gloss


def bible():
    """The lines of the Bible's data file: "Ge1:1 In the beginning ...".

    A header (40 bytes of name, ..., window size, number of windows, their offsets; big-endian), then windows packed by
    compress(1) without its three magic bytes, which gzip unpacks.
    """
    with open(need(BIBLE, "bible-kjv-text"), "rb") as f:
        data = f.read()
    damaged = f"demo_text: {BIBLE} is not in the format of bible-kjv-text 4: reinstall that package"
    try:
        window, count = struct.unpack_from(">II", data, 0x54)
        offsets = struct.unpack_from(f">{count}I", data, 0x5C) + (len(data),)
    except struct.error:
        sys.exit(damaged)
    if not data.startswith(b"EC02Compressed") or list(offsets) != sorted(offsets):
        sys.exit(damaged)
    text = bytearray()
    for begin, end in zip(offsets, offsets[1:]):
        r = subprocess.run(["gzip", "-dc"], input=b"\x1f\x9d\x90" + data[begin:end], capture_output=True, check=False)
        if r.returncode != 0 or not 0 < len(r.stdout) <= window:
            sys.exit(damaged)
        text += r.stdout
    return text.decode("ascii").splitlines()


def passages():
    """Groups of verses, each within its chapter."""
    chapter, verses = None, []
    for line in bible():
        m = re.fullmatch(r"(\w+\d+):\d+ (\S.*)", line)
        if not m:  # the title line
            continue
        if verses and (m[1] != chapter or len(verses) == VERSES):
            yield "\n".join(verses)
            verses = []
        chapter = m[1]
        verses.append(m[2].strip())
    if verses:
        yield "\n".join(verses)


def write(path, documents):
    """Whole or not at all; a file that holds these bytes already keeps its time."""
    data = ("\n\n".join(documents) + "\n").encode()
    try:
        with open(path, "rb") as f:
            if f.read() == data:
                return data
    except OSError:
        pass
    temporary = f"{path}.tmp-{os.getpid()}"
    try:
        with open(temporary, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except OSError as e:
        if os.path.exists(temporary):
            os.unlink(temporary)
        sys.exit(f"demo_text: cannot write {path}: {e.strerror}")
    return data


def main(out):
    entries = list(dict.fromkeys(synsets()))
    verses = list(dict.fromkeys(passages()))
    if len(entries) < 100_000 or len(verses) < 5_000:
        sys.exit(f"demo_text: {len(entries)} synsets and {len(verses)} passages found, far fewer than there should be: "
                 "reinstall the Debian packages wordnet-base and bible-kjv-text")
    choose = random.Random(SEED)
    choose.shuffle(entries)
    glosses = {gloss for _, gloss in entries[:HELD_OUT]}
    heldout = [f"{word}: {gloss}" for word, gloss in entries[:HELD_OUT]]
    train = [f"{word}: {gloss}" for word, gloss in entries[HELD_OUT:] if gloss not in glosses]
    words = len(train)
    train += verses
    choose.shuffle(train)

    try:
        os.makedirs(out, exist_ok=True)
    except OSError as e:
        sys.exit(f"demo_text: cannot create the folder {out}: {e.strerror}")
    size = len(write(os.path.join(out, "train.txt"), train))
    print(f"{out}/train.txt: {len(train):,} documents ({words:,} from WordNet, {len(verses):,} from the Bible), {size:,} bytes")
    data = write(os.path.join(out, "heldout.txt"), heldout)
    packed = len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
    print(f"{out}/heldout.txt: {len(heldout):,} documents from WordNet, {len(data):,} bytes; "
          f"xz -9e: {packed:,} bytes, {8 * packed / len(data):.3f} bits per byte")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.split("\n\n")[1])
    main(sys.argv[1])
