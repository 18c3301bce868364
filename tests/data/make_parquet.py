"""Parquet files as pyarrow writes them, and beside each (FILE.expected) the documents a reader must find, one JSON string
a line: every text that is neither null nor empty, in order.

usage: PYTHONPATH=.deps/pyarrow python3.11 make_parquet.py FOLDER
"""
import json
import os
import random
import sys

import pyarrow as pa
import pyarrow.parquet as pq

WORDS = "the of and to in a is that for it as was with be by on not he his but at are this have".split()


def texts(rng, rows):
    """Short texts with what is easily lost: nulls, empty ones, other scripts, zero bytes, line ends, repeats."""
    odd = [None, "", None, "\u00e9\u4e2d\U0001f600", "a\0b", "two\nlines\r\n", " ", "again", "again", "\ufeffmark", "x" * 5000]
    out = []
    for _ in range(rows):
        if rng.random() < 0.3:
            out.append(rng.choice(odd))
        else:
            out.append(" ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 40))))
    return out


def write(folder, name, schema, groups, text_of=lambda table: table.column("text"), **options):
    """One row group for each table of `groups`."""
    path = os.path.join(folder, name + ".parquet")
    with pq.ParquetWriter(path, schema, **options) as writer:
        for table in groups:
            writer.write_table(table, row_group_size=max(1, table.num_rows))
    assert pq.ParquetFile(path).num_row_groups == len(groups), name
    with open(path + ".expected", "w", encoding="utf-8") as f:
        for table in groups:
            for text in text_of(table).to_pylist():
                if text:
                    f.write(json.dumps(text) + "\n")


def of_type(kind, values):
    if kind == "dictionary":
        return pa.array(values, pa.string()).dictionary_encode()
    return pa.array(values, {"string": pa.string(), "large_string": pa.large_string(),
                             "string_view": pa.string_view()}[kind])


def every_kind(folder):
    for kind in "string", "large_string", "dictionary", "string_view":
        for codec in "none", "snappy", "gzip", "zstd", "lz4", "brotli":
            for version in "1.0", "2.0":
                rng = random.Random(f"{kind} {codec} {version}")
                groups = [texts(rng, 40), [], [None] * 5, texts(rng, 1), [""] * 3, texts(rng, 25)]
                tables = [pa.table({"id": pa.array(range(len(g)), pa.int64()), "text": of_type(kind, g)}) for g in groups]
                write(folder, f"{kind}-{codec}-v{version[0]}", tables[0].schema, tables, compression=codec,
                      data_page_version=version, use_dictionary=rng.random() < 0.5, data_page_size=2000)


def sizes(folder):
    """Row groups of 1, 1,000 and 100,000 rows."""
    rng = random.Random(5)
    words = [rng.choice(WORDS) for _ in range(100_000)]
    groups = [["one"], texts(rng, 1000), [f"{word} {i}" for i, word in enumerate(words)], ["last"]]
    tables = [pa.table({"text": pa.array(g, pa.string())}) for g in groups]
    write(folder, "sizes", tables[0].schema, tables, compression="snappy")


def not_null(folder):
    schema = pa.schema([pa.field("text", pa.string(), nullable=False)])
    table = pa.table({"text": pa.array(["a", "", "b"], pa.string())}, schema=schema)
    write(folder, "required", schema, [table, table], compression="zstd", write_statistics=False)


def fineweb(folder):
    """The columns of FineWeb-Edu, in row groups of 1,000."""
    rng = random.Random(7)
    tables = []
    for group in range(3):
        n = 1000 if group < 2 else 321
        text = [" ".join(rng.choice(WORDS) for _ in range(rng.randrange(5, 120))) for _ in range(n)]
        tables.append(pa.table({
            "text": pa.array(text, pa.string()),
            "id": pa.array([f"<urn:uuid:{rng.getrandbits(128):032x}>" for _ in text], pa.string()),
            "dump": pa.array(["CC-MAIN-2013-20"] * n, pa.string()),
            "url": pa.array([f"http://example.org/{i}" for i in range(n)], pa.string()),
            "file_path": pa.array(["s3://commoncrawl/x.warc.gz"] * n, pa.string()),
            "language": pa.array(["en"] * n, pa.string()),
            "language_score": pa.array([rng.random() for _ in text], pa.float64()),
            "token_count": pa.array([len(t) // 4 for t in text], pa.int64()),
            "score": pa.array([rng.random() * 5 for _ in text], pa.float64()),
            "int_score": pa.array([3] * n, pa.int64())}))
    write(folder, "fineweb", tables[0].schema, tables, compression="zstd")


def main(folder):
    os.makedirs(folder, exist_ok=True)
    every_kind(folder)
    sizes(folder)
    not_null(folder)
    fineweb(folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
