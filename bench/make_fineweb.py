"""Makes Parquet files shaped like FineWeb-Edu's (ten columns, row groups of 1,000) from real English text: verses of the
King James Bible and glosses of WordNet, joined to documents of a web page's length (median 3 kB, some above 100 kB).

usage: PYTHONPATH=.deps/pyarrow .deps/python3.11 bench/make_fineweb.py --out DIR [--mb 200] [--files 2] [--seed 1]
                                                                       [--codec snappy]

Writes DIR/sample/10BT/000_00000.parquet and so on, --mb megabytes on disk in all; the same options give the same files.
"""
import argparse
import bisect
import os
import random
import sys

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts"))
import demo_text  # noqa: E402  pylint: disable=wrong-import-position

ROWS = 1000
MEDIAN, SIGMA, LONGEST = 3000, 1.05, 300_000
SCHEMA = pa.schema([
    ("text", pa.string()), ("id", pa.string()), ("dump", pa.string()), ("url", pa.string()), ("file_path", pa.string()),
    ("language", pa.string()), ("language_score", pa.float64()), ("token_count", pa.int64()), ("score", pa.float64()),
    ("int_score", pa.int64())])
DUMPS = [f"CC-MAIN-{year}-{week:02}" for year in range(2013, 2025) for week in (5, 14, 26, 40, 50)]


class Source:
    """One long text, and where its sentences begin."""

    def __init__(self, pieces, separator):
        self.text = separator.join(pieces)
        self.begins = [0]
        for piece in pieces:
            self.begins.append(self.begins[-1] + len(piece) + len(separator))
        self.separator = separator

    def cut(self, rng, size):
        """Consecutive sentences from anywhere, about `size` characters."""
        last = bisect.bisect_left(self.begins, max(1, len(self.text) - size))
        first = rng.randrange(max(1, last))
        begin = self.begins[first]
        end = self.begins[min(bisect.bisect_left(self.begins, begin + size, first + 1), len(self.begins) - 1)]
        return self.text[begin:end].removesuffix(self.separator)


def sources():
    verses = [line.split(" ", 1)[1].strip() for line in demo_text.bible() if " " in line]
    glosses = [f"{word[:1].upper()}{word[1:]}: {gloss}." for word, gloss in demo_text.synsets()]
    paragraphs = [" ".join(glosses[i:i + 6]) for i in range(0, len(glosses), 6)]
    return Source(verses, "\n"), Source(paragraphs, "\n\n")


def row_group(rng, texts, number):
    columns = {name: [] for name in SCHEMA.names}
    for row in range(ROWS):
        size = min(LONGEST, int(rng.lognormvariate(0, SIGMA) * MEDIAN))
        text = texts[rng.random() < 0.7].cut(rng, size)
        dump = rng.choice(DUMPS)
        score = min(5.1, 2.5 + rng.expovariate(2.0))
        digits = f"{rng.getrandbits(128):032x}"
        values = (text, f"<urn:uuid:{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}>", dump,
                  f"http://www.example-{rng.randrange(5000)}.org/{number}/{row}.html",
                  f"s3://commoncrawl/crawl-data/{dump}/segments/{rng.randrange(10**12)}/warc/{rng.randrange(10**5):05}.warc.gz",
                  "en", 0.65 + 0.35 * rng.random(), len(text.encode()) * 10 // 47, score, round(score))
        for name, value in zip(SCHEMA.names, values):
            columns[name].append(value)
    return pa.table(columns, schema=SCHEMA)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--out", required=True, help="folder to write into")
    parser.add_argument("--mb", type=float, default=200, help="megabytes on disk, all files together")
    parser.add_argument("--files", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--codec", default="snappy", choices=["snappy", "zstd", "gzip", "none"])
    options = parser.parse_args()
    if options.files < 1 or not options.mb > 0:
        parser.error("--files and --mb must be above 0")
    folder = os.path.join(options.out, "sample", "10BT")
    os.makedirs(folder, exist_ok=True)
    texts = sources()
    rows, size, characters = 0, 0, 0
    for number in range(options.files):
        rng = random.Random(f"{options.seed} {number}")
        path = os.path.join(folder, f"000_{number:05}.parquet")
        with open(path + ".tmp", "wb") as f:
            with pq.ParquetWriter(f, SCHEMA, compression=options.codec) as writer:
                while f.tell() < options.mb * 1e6 / options.files:
                    table = row_group(rng, texts, rows // ROWS)
                    writer.write_table(table, row_group_size=ROWS)
                    rows += ROWS
                    characters += sum(map(len, table.column("text").to_pylist()))
        os.replace(path + ".tmp", path)
        size += os.path.getsize(path)
    print(f"{folder}: {rows:,} documents in {options.files} files, {size / 1e6:,.1f} MB, {characters / 1e6:,.1f} MB of text")


if __name__ == "__main__":
    main()
