"""Text and a tokenizer for benches whose speed does not depend on what is read."""
import os
import random
import subprocess


def text_and_tokenizer(mythos, folder, vocab):
    """FOLDER/text.txt, about 6 MB of made-up words in 12,000 documents, and FOLDER/tokenizer.json."""
    draw = random.Random(1)
    words = ["".join(draw.choice("aeioulnrstdm") for _ in range(draw.randint(2, 9))) for _ in range(3000)]
    with open(os.path.join(folder, "text.txt"), "w", encoding="utf-8") as f:
        for _ in range(12000):
            f.write(" ".join(draw.choice(words) for _ in range(80)) + ".\n\n")
    subprocess.run([mythos, "tokenizer", "train", "text.txt", "--vocab", str(vocab), "--out", "tokenizer.json"], cwd=folder,
                   check=True, capture_output=True)
