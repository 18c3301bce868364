#!/usr/bin/env python3
"""Writes unicode_ranges.inc, the character classes of the o200k splitting rule, from Unicode 16.0.

The rule's users (tiktoken's regex engine) have Unicode 16.0, so the tables have it too, whatever is newer.
Needs the package `unicodedata2==16.0.0`, or a Python whose own unicodedata is 16.0 (3.14).
    python3 generate_unicode_ranges.py > unicode_ranges.inc
"""
try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

assert unicodedata.unidata_version == "16.0.0", unicodedata.unidata_version

# The numbers are those of enum CharClass in unicode.h.
OTHER, UPPER, LOWER, LETTER, MARK, NUMBER, SPACE, NEWLINE = range(8)
BY_CATEGORY = {
    "Lu": UPPER, "Lt": UPPER, "Ll": LOWER, "Lm": LETTER, "Lo": LETTER,
    "Mn": MARK, "Mc": MARK, "Me": MARK, "Nd": NUMBER, "Nl": NUMBER, "No": NUMBER,
    "Zs": SPACE, "Zl": SPACE, "Zp": SPACE,
}


def char_class(code):
    if code in (0x0A, 0x0D):
        return NEWLINE
    if code in (0x09, 0x0B, 0x0C, 0x85):  # the controls with the White_Space property
        return SPACE
    return BY_CATEGORY.get(unicodedata.category(chr(code)), OTHER)


def main():
    starts, last = [], None
    for code in range(0x110000):
        c = char_class(code)
        if c != last:
            starts.append(code << 3 | c)
            last = c
    print("// Written by generate_unicode_ranges.py from Unicode 16.0. Each number: first code point << 3 | class.")
    for i in range(0, len(starts), 14):
        print(" ".join(f"{s}," for s in starts[i:i + 14]))


main()
